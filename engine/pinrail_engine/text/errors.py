"""Everything the text layer raises on purpose.

PinrailError                the contract's base: one sentence, exit 1
└── TextError
    ├── TokenizerError      a text file of the model is missing or of a kind we do not read; only another model helps
    └── PromptError         one request's messages or text cannot become a prompt; the client can mend it
"""

from pinrail_contract.errors import PinrailError


class TextError(PinrailError):
    """Base of the errors above."""


class TokenizerError(TextError):
    """A text file of the model cannot be used.

    Args:
        file: Its name inside the model, e.g. "tokenizer.json".
        problem: What was seen and what is wanted.
    """

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file = file


class PromptError(TextError):
    """The message is meant for the client."""
