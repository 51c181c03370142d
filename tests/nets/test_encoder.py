import pytest
import torch

from srl.core.env import Observation
from srl.nets.conv import ConvNet, channels_first
from srl.nets.encoder import Encoder, EncoderOptions, EntityEncoder, OneHot, make_encoder
from srl.nets.normaliser import Normaliser
from srl.ops.normalise import moments_of


def test_one_hot_by_hand():
    part = OneHot((2, 3))
    assert part(torch.tensor([[1, 0], [0, 2]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_encoder_puts_observations_side_by_side():
    encoder = Encoder(
        (
            Observation("position", (2, 2), "float64"),
            Observation("alive", (), "bool"),
            Observation("kind", (), "uint8", categories=(3,)),
            Observation("view", (5, 6, 3), "uint8"),
        )
    )
    obs = {
        "position": torch.arange(8.0, dtype=torch.float64).reshape(2, 2, 2),
        "alive": torch.tensor([True, False]),
        "kind": torch.tensor([2, 0], dtype=torch.uint8),
        "view": torch.zeros(2, 5, 6, 3, dtype=torch.uint8),
    }
    features = encoder(obs)
    assert features.shape == (2, 4 + 1 + 3 + 512)
    assert features.dtype == torch.float32
    assert features[0, :8].tolist() == [0, 1, 2, 3, 1, 0, 0, 1]


@pytest.mark.parametrize("shape", [(84, 84, 4), (4, 84, 84), (36, 40, 3), (7, 7, 3), (1, 3, 3)])
def test_conv_takes_both_layouts_and_small_images(shape):
    net = ConvNet(shape)
    assert channels_first(shape) == (shape[0] < shape[2])
    assert net(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, 512)


def test_conv_divides_uint8_by_255_and_layouts_agree():
    last, first = ConvNet((10, 12, 3)), ConvNet((3, 10, 12))
    first.load_state_dict(last.state_dict())
    image = torch.randint(0, 256, (2, 10, 12, 3), dtype=torch.uint8)
    torch.testing.assert_close(last(image), last(image.float() / 255))
    torch.testing.assert_close(last(image), first(image.permute(0, 3, 1, 2)))


def test_normaliser_is_identity_before_rows_and_standardises_after():
    normaliser = Normaliser((2,))
    rows = torch.tensor([[0.0, 5.0], [4.0, 5.0]])
    torch.testing.assert_close(normaliser.normalise(rows), rows)
    normaliser.update(moments_of(rows))
    assert normaliser.normalise(rows).tolist() == [[-1, 0], [1, 0]]
    torch.testing.assert_close(normaliser.denormalise(normaliser.normalise(rows)), rows)


def test_resnet_takes_the_images_and_nothing_else():
    seen = (Observation("view", (12, 12, 3), "uint8"), Observation("at", (2,), "float32"))
    encoder = make_encoder(seen, EncoderOptions("resnet", width=2), normalise=False)
    obs = {"view": torch.zeros(2, 12, 12, 3, dtype=torch.uint8), "at": torch.ones(2, 2)}
    assert encoder(obs).shape == (2, 256 + 2)
    assert encoder.state_dict()["parts.0.stages.0.conv.weight"].shape == (32, 3, 3, 3)


def test_light_images_have_half_the_features():
    seen = (Observation("view", (4, 84, 84), "uint8"),)
    encoder = make_encoder(seen, EncoderOptions("light"), normalise=False)
    assert encoder({"view": torch.zeros(2, 4, 84, 84, dtype=torch.uint8)}).shape == (2, 256)


BOXES = Observation("boxes", (3, 2), "float32")
MASK = Observation("boxes_mask", (3,), "int8")


def test_sets_are_seen_beside_all_other_observations():
    others = (Observation("kind", (), "int64", categories=(3,)), Observation("at", (2,), "float32"))
    options = EncoderOptions("entities", entity_size=8)
    encoder = make_encoder((BOXES, *others, MASK), options, normalise=False)
    assert isinstance(encoder, EntityEncoder)
    obs = {
        "boxes": torch.randn(4, 3, 2),
        "boxes_mask": torch.tensor([[1, 0, 1]] * 4, dtype=torch.int8),
        "kind": torch.tensor([0, 1, 2, 0]),
        "at": torch.randn(4, 2),
    }
    features = encoder(obs)
    assert features.shape == (4, encoder.num_features) == (4, 16)
    moved = encoder(obs | {"at": obs["at"] + 1})
    assert not torch.allclose(moved, features)


def test_a_set_alone_is_encoded_also_where_it_is_empty():
    encoder = make_encoder((BOXES, MASK), EncoderOptions("entities"), normalise=False)
    obs = {"boxes": torch.randn(2, 3, 2), "boxes_mask": torch.zeros(2, 3, dtype=torch.int8)}
    features = encoder(obs)
    assert features.shape == (2, 256)
    assert features.isfinite().all()
    torch.testing.assert_close(features[0], features[1])


def test_what_shares_no_set_is_encoded_without():
    encoder = make_encoder(
        (Observation("at", (2,), "float32"),), EncoderOptions("entities"), normalise=False
    )
    assert encoder({"at": torch.ones(1, 2)}).tolist() == [[1, 1]]


def test_normalisers_of_sets_count_in_the_entities_that_are_there():
    seen = (BOXES, MASK, Observation("at", (1,), "float32"))
    encoder = make_encoder(seen, EncoderOptions("entities"), normalise=True)
    assert encoder.normalised() == ("at", "boxes", "boxes_mask")
    boxes = torch.full((2, 3, 2), 1e9)
    boxes[0, 0], boxes[1, 2] = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 5.0])
    mask = torch.tensor([[1, 0, 0], [0, 0, 1]], dtype=torch.int8)
    obs = {"boxes": boxes, "boxes_mask": mask, "at": torch.tensor([[0.0], [2.0]])}
    encoder.count_in(obs, lambda _: None)
    kept = encoder.state_dict()
    assert kept["entities.sets.0.normaliser.count"] == 2
    assert kept["entities.sets.0.normaliser.mean"].tolist() == [2, 5]
    assert kept["entities.sets.0.normaliser.var"].tolist() == [1, 0]
    assert kept["parts.0.normaliser.mean"].tolist() == [1]
    before = {name: x.clone() for name, x in kept.items() if name.startswith("entities.sets")}
    encoder.count_in(obs | {"boxes_mask": mask * 0}, lambda _: None)
    assert all(torch.equal(encoder.state_dict()[name], x) for name, x in before.items())
