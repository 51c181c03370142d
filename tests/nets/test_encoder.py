import pytest
import torch

from srl.core.env import Observation
from srl.nets.conv import ConvNet, channels_first
from srl.nets.encoder import Encoder, OneHot
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
