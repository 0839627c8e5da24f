"""Checksums that tell a real number from one that only looks like it."""


def luhn(text: str) -> bool:
    """Tell whether the digits in `text` pass the Luhn check (ISO/IEC 7812-1); other characters are passed over."""
    digits = [int(char) for char in text if char.isdecimal()]
    # All zeros pass the sum but are no card.
    if not any(digits):
        return False
    doubled = (digit * 2 for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(value - 9 if value > 9 else value for value in doubled)) % 10 == 0


def iban(text: str) -> bool:
    """Tell whether `text` passes the IBAN check (ISO 13616, modulo 97); what is neither letter nor digit is skipped."""
    plain = [char for char in text.upper() if char.isdecimal() or "A" <= char <= "Z"]
    moved = plain[4:] + plain[:4]
    return bool(moved) and int("".join(str(int(char, 36)) for char in moved)) % 97 == 1


BY_NAME = {"luhn": luhn, "iban": iban}
"""The checks by the name that a pattern gives, `(?#luhn)`."""
