"""One line of what a tool found out."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """How it stands with one thing."""

    level: Literal["ok", "note", "attention", "problem"]
    """Fine; good to know; something to do; a contract is broken."""
    about: str
    words: str = ""

    def __str__(self) -> str:
        return f"{self.level:<10} {self.about}{': ' if self.words else ''}{self.words}"
