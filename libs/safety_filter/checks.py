"""What tells a real number from one that only looks like it. Each takes a match as the view has it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import phonenumbers
from stdnum import iban as stdnum_iban
from stdnum import luhn as stdnum_luhn
from stdnum.us import ssn as stdnum_ssn

_CACHED = 4096
_NOT_ALNUM = re.compile(r"[\W_]+")
_GROUPS = re.compile(r"[0-9]+")
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|(?:6011|64[4-9]\d|65\d\d|35(?:2[89]|[3-8]\d)|62\d\d|81\d\d)\d{12,15}"  # Discover, JCB, UnionPay
    r"|3(?:0[0-5]|[68]\d)\d{11,16}"  # Diners Club
    r"|(?:50|5[6-9]|6\d)\d{10,17}"  # Maestro
    r"|220[0-4]\d{12,15}"  # Mir
)


@lru_cache(maxsize=_CACHED)
def luhn(text: str) -> bool:
    """Tell whether the digits in `text` pass the Luhn check (ISO/IEC 7812-1); other characters are passed over."""
    digits = "".join(_GROUPS.findall(text))
    # All zeros pass the sum but are no card.
    return digits.strip("0") != "" and stdnum_luhn.is_valid(digits)


@lru_cache(maxsize=_CACHED)
def card(text: str) -> bool:
    """Tell whether `text` is the number of a payment card: an issuer's prefix, its length, the Luhn check.

    Grouped as people group: by three digits or more, or all alike but a shorter last. A list of numbers is none, nor is
    a decimal.
    """
    groups = _GROUPS.findall(text)
    first, last = len(groups[0]), len(groups[-1])
    alike = all(len(group) == first for group in groups[:-1]) and last <= first
    if not alike and min(map(len, groups)) < 3:
        return False
    return _ISSUERS.fullmatch("".join(groups)) is not None and luhn(text)


@lru_cache(maxsize=_CACHED)
def iban(text: str) -> bool:
    """Tell whether `text` is an IBAN (ISO 13616): country, length, structure and check digits; separators are passed
    over."""
    return bool(stdnum_iban.is_valid(_NOT_ALNUM.sub("", text), check_country=False))


@lru_cache(maxsize=_CACHED)
def ssn(text: str) -> bool:
    """Tell whether `text` may be a social security number of the United States: no number of an area or group that was
    never given out; separators are passed over."""
    digits = "".join(_GROUPS.findall(text))
    return bool(stdnum_ssn.is_valid(f"{digits[:3]}-{digits[3:5]}-{digits[5:]}"))


@lru_cache(maxsize=_CACHED)
def phone(text: str) -> bool:
    """Tell whether `text` may be an international telephone number: a country's code and a length that it has."""
    try:
        return phonenumbers.is_possible_number(phonenumbers.parse("+" + "".join(_GROUPS.findall(text))))
    except phonenumbers.NumberParseException:
        return False


@dataclass(frozen=True, slots=True)
class Check:
    """A check; `behind` is how many characters before the match it sees too."""

    passes: Callable[[str], bool]
    behind: int = 0


BY_NAME = {
    "luhn": Check(luhn),
    "card": Check(card),
    "iban": Check(iban),
    "iban-rest": Check(iban, behind=2),
    "ssn": Check(ssn),
    "phone": Check(phone),
}
"""The checks by the name that a pattern gives, `(?#luhn)`. "iban-rest" is for a match without the country's letters."""
