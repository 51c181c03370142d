"""The version of SRL."""

VERSION = "0.1.0"
