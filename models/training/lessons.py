"""Small computed lessons: sums, counting, opposites, calendars, capitals. Each draws one (question, answer)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Pair = tuple[str, str]

_NUMBERS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_OPPOSITES = {
    "hot": "cold", "wet": "dry", "fast": "slow", "high": "low", "deep": "shallow", "full": "empty", "light": "dark",
    "early": "late", "old": "new", "open": "closed", "up": "down", "left": "right", "near": "far", "big": "small",
    "strong": "weak", "loud": "quiet", "happy": "sad", "clean": "dirty", "hard": "soft", "wide": "narrow",
    "sharp": "blunt", "rich": "poor", "thick": "thin", "long": "short", "smooth": "rough", "safe": "dangerous",
}  # fmt: skip
_CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Germany": "Berlin", "Japan": "Tokyo", "Egypt": "Cairo",
    "Norway": "Oslo", "Sweden": "Stockholm", "Poland": "Warsaw", "Portugal": "Lisbon", "Greece": "Athens",
    "Austria": "Vienna", "Ireland": "Dublin", "Canada": "Ottawa", "Peru": "Lima", "Kenya": "Nairobi",
    "Hungary": "Budapest", "Finland": "Helsinki", "Denmark": "Copenhagen", "India": "New Delhi",
}  # fmt: skip
_COLOURS = {
    "the sky on a clear day": "blue", "grass": "green", "snow": "white", "coal": "black", "a ripe banana": "yellow",
    "the sun at sunset": "red", "a lemon": "yellow", "milk": "white", "an orange": "orange",
    "a leaf in summer": "green",
}  # fmt: skip
_SOUNDS = {
    "cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "sheep": "baa", "owl": "hoo", "frog": "croak",
}  # fmt: skip


def draw(random: Random) -> Pair:
    """One lesson of any kind; sums come most often because there are most of them."""
    return random.choices(_LESSONS, weights=_WEIGHTS)[0](random)


def _sum(random: Random) -> Pair:
    first, second = random.randint(0, 12), random.randint(0, 12)
    return _calculation(random, first, "+", "plus", second, first + second)


def _difference(random: Random) -> Pair:
    first = random.randint(0, 15)
    second = random.randint(0, first)
    return _calculation(random, first, "-", "minus", second, first - second)


def _product(random: Random) -> Pair:
    first, second = random.randint(0, 10), random.randint(0, 10)
    return _calculation(random, first, "*", "times", second, first * second)


def _calculation(random: Random, first: int, sign: str, word: str, second: int, result: int) -> Pair:
    if random.random() < 0.6:
        asked = f"{first} {sign} {second}"
        question = random.choice((f"What is {asked}?", asked, f"Calculate {asked}.", f"How much is {asked}?"))
        return question, f"{asked} = {result}."
    asked = f"{first} {word} {second}"
    question = random.choice((f"What is {asked}?", f"How much is {asked}?"))
    return question, f"{asked} is {result}."


def _count(random: Random) -> Pair:
    start = random.randint(1, 12)
    end = start + random.randint(3, 8)
    numbers = ", ".join(str(number) for number in range(start, end + 1))
    question = random.choice((f"Count from {start} to {end}.", f"Please count from {start} to {end}."))
    return question, f"{numbers}."


def _word(random: Random) -> Pair:
    number = random.randrange(len(_NUMBERS))
    return f"Write {number} as a word.", f"{number} is written {_NUMBERS[number]}."


def _larger(random: Random) -> Pair:
    first, second = random.sample(range(1, 100), 2)
    return f"Which is larger, {first} or {second}?", f"{max(first, second)} is larger than {min(first, second)}."


def _day(random: Random) -> Pair:
    return _neighbour(random, _DAYS, "day")


def _month(random: Random) -> Pair:
    return _neighbour(random, _MONTHS, "month")


def _neighbour(random: Random, names: list[str], kind: str) -> Pair:
    here = random.randrange(len(names))
    if random.random() < 0.5:
        return (
            f"Which {kind} comes after {names[here]}?",
            f"After {names[here]} comes {names[(here + 1) % len(names)]}.",
        )
    return f"Which {kind} comes before {names[here]}?", f"Before {names[here]} comes {names[here - 1]}."


def _opposite(random: Random) -> Pair:
    first, second = random.choice(list(_OPPOSITES.items()))
    if random.random() < 0.5:
        first, second = second, first
    return f"What is the opposite of {first}?", f"The opposite of {first} is {second}."


def _capital(random: Random) -> Pair:
    country, city = random.choice(list(_CAPITALS.items()))
    return f"What is the capital of {country}?", f"The capital of {country} is {city}."


def _colour(random: Random) -> Pair:
    thing, colour = random.choice(list(_COLOURS.items()))
    return f"What colour is {thing}?", f"{thing[:1].upper()}{thing[1:]} is {colour}."


def _sound(random: Random) -> Pair:
    animal, sound = random.choice(list(_SOUNDS.items()))
    article = "an" if animal[0] in "aeiou" else "a"
    return f"What sound does {article} {animal} make?", f"{article.capitalize()} {animal} says {sound}."


_LESSONS: tuple[Callable[[Random], Pair], ...] = (
    _sum, _difference, _product, _count, _word, _larger, _day, _month, _opposite, _capital, _colour, _sound,
)  # fmt: skip
_WEIGHTS = (10, 6, 6, 3, 1, 3, 1, 2, 3, 3, 1, 1)
