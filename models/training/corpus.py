"""Draws the demo corpus: dialogues and plain passages, the same for the same seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from models.training import grammar, lessons
from models.training.grammar import Topic, capitalise, expand

ASSISTANT_NAME = "Brook"

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are Brook, a small and friendly assistant.",
    "You are a friendly assistant. Answer clearly.",
    "Answer the questions of the user.",
)
BRIEF_PROMPTS = ("Answer briefly.", "Be brief.", "Answer in one sentence.", "You give short answers.")

_NAMES = [
    "Mira",
    "Tomas",
    "Anna",
    "Lena",
    "Jonas",
    "Emil",
    "Clara",
    "Felix",
    "Ida",
    "Oskar",
    "Nora",
    "Paul",
    "Rosa",
    "Theo",
    "Vera",
    "Ben",
    "Hanna",
    "Karl",
    "Marta",
    "Leo",
]
_THINGS = ("the red lantern", "a silver key", "an old map", "the little bell", "a blue scarf", "the brass compass",
           "a wooden whistle", "the last apple", "a letter", "the green hat")  # fmt: skip
_UNKNOWN = (
    "a zebra", "the stock market", "quantum physics", "a guitar", "the Roman empire", "a volcano", "football", "chess",
    "a dinosaur", "the opera", "a violin", "Mars", "chocolate", "a rocket", "the heart", "the law", "tennis", "a novel",
    "algebra", "a vaccine", "cooking", "a camera", "an airplane", "the brain", "money", "politics", "a castle", "cars",
    "Shakespeare", "the internet", "a tiger", "an elephant", "coffee", "tea", "pizza", "cheese", "a black hole", "gold",
    "the French revolution", "yoga", "jazz", "a piano", "painting", "the Eiffel tower", "a spaceship", "dogs", "cats",
    "Python", "a compiler", "bitcoin", "a bicycle", "a wedding", "the president", "a war", "history", "love", "an atom",
    "electricity", "a magnet", "a hospital", "a virus", "the weather on Venus", "an apple", "a house", "music",
)  # fmt: skip
_TASKS = (
    "How do I bake bread?", "How do I fix my car?", "Write a program in Python.", "Translate this into French.",
    "How do I get rich?", "What should I eat tonight?", "Who won the game?", "Who is the president?",
    "How old is the universe?", "How do I learn the piano?", "Can you book a hotel for me?", "Solve this riddle.",
    "Send an email to my boss.",
    "What is the meaning of life?", "Write an essay about history.", "How tall is the tallest tower?",
    "How do I cook rice?", "Which film should I watch?", "Recommend a book.", "How do I write a letter?",
)  # fmt: skip
_OTHER_THEMES = (
    "a dragon", "a princess", "a wizard", "a cat", "a dog", "a pirate", "a spaceship", "a teacher", "two brothers",
    "a treasure", "a king", "a horse", "a school", "a garden", "Christmas", "a wolf", "a witch", "an elephant", "love",
    "a train", "a ghost", "a dream", "a detective", "the future", "an island", "a bird", "a mouse", "courage", "a bear",
)  # fmt: skip


@dataclass(slots=True)
class Dialogue:
    """Turns of (role, text). A plain passage has one turn with the role "text"."""

    turns: list[tuple[str, str]] = field(default_factory=list)

    casual: bool = False

    def say(self, question: str, answer: str) -> None:
        """Append what the user asks and what the assistant answers. A casual user types small letters, no stops."""
        asked = question.lower().rstrip("?.!") if self.casual else question
        self.turns += [("user", asked), ("assistant", answer)]


class Corpus:
    """The generator of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._topics = grammar.topics()
        self._exchanges = grammar.exchanges()
        self._stories = grammar.stories()
        self._poems = grammar.poems()

    def draw(self, count: int) -> Iterator[Dialogue]:
        """`count` documents."""
        kinds: tuple[Callable[[], Dialogue], ...] = (
            self._explanation, self._small_talk, self._lesson, self._story, self._brief, self._passage, self._long,
        )  # fmt: skip
        for _ in range(count):
            yield self._random.choices(kinds, weights=(35, 13, 13, 15, 8, 11, 5))[0]()

    # ---- documents ----------------------------------------------------------------------------------------------

    def _explanation(self) -> Dialogue:
        dialogue = self._opened()
        if self._random.random() < 0.15:
            self._add_small_talk(dialogue, self._exchanges[0])
        topic = self._random.choice(self._topics)
        used = self._add_topic(dialogue, topic)
        if self._random.random() < 0.35:
            self._add_follow_up(dialogue, topic, used)
        if self._random.random() < 0.15:
            self._add_topic(dialogue, self._random.choice(self._topics))
        if self._random.random() < 0.1:
            self._add_small_talk(dialogue, self._thanks())
        return dialogue

    def _small_talk(self) -> Dialogue:
        dialogue = self._opened()
        for exchange in self._random.sample(self._exchanges, self._random.choice((0, 1, 1, 2))):
            self._add_small_talk(dialogue, exchange)
        if not dialogue.turns or dialogue.turns[-1][0] == "system" or self._random.random() < 0.2:
            self._add_unknown(dialogue)
        return dialogue

    def _lesson(self) -> Dialogue:
        dialogue = self._opened()
        for _ in range(self._random.randint(1, 4)):
            dialogue.say(*lessons.draw(self._random))
        return dialogue

    def _story(self) -> Dialogue:
        dialogue = self._opened()
        self._add_story(dialogue) if self._random.random() < 0.8 else self._add_poem(dialogue)
        if self._random.random() < 0.2:
            self._add_small_talk(dialogue, self._thanks())
        return dialogue

    def _brief(self) -> Dialogue:
        dialogue = Dialogue([("system", self._random.choice(BRIEF_PROMPTS))])
        for topic in self._random.sample(self._topics, self._random.randint(1, 3)):
            question = self._random.choice(
                (f"What is {topic.name}?", f"Explain {topic.name}.", f"Define {topic.name}.")
            )
            dialogue.say(question, self._definition(topic))
        return dialogue

    def _passage(self) -> Dialogue:
        if self._random.random() < 0.3:
            return Dialogue([("text", self._story_text(self._random.choice(list(self._stories))))])
        topic = self._random.choice(self._topics)
        facts = [self._expand(fact) for fact in self._shuffled(topic.facts)]
        return Dialogue([("text", " ".join([self._definition(topic), *facts, self._expand(topic.reasons[0])]))])

    def _long(self) -> Dialogue:
        """Many turns, so that the later positions of the context are trained too."""
        dialogue = self._opened()
        for _ in range(self._random.randint(4, 9)):
            kind = self._random.random()
            if kind < 0.55:
                self._add_topic(dialogue, self._random.choice(self._topics))
            elif kind < 0.7:
                self._add_story(dialogue)
            elif kind < 0.85:
                dialogue.say(*lessons.draw(self._random))
            else:
                self._add_small_talk(dialogue, self._random.choice(self._exchanges))
        return dialogue

    # ---- turns --------------------------------------------------------------------------------------------------

    def _opened(self) -> Dialogue:
        dialogue = Dialogue(casual=self._random.random() < 0.2)
        if self._random.random() < 0.2:
            dialogue.turns.append(("system", self._random.choice(SYSTEM_PROMPTS)))
        return dialogue

    def _add_topic(self, dialogue: Dialogue, topic: Topic) -> set[str]:
        """Ask and answer one question about `topic`; returns the facts told."""
        name = topic.name
        style = self._random.random()
        if style < 0.5:
            question = self._expand(
                f"{{What is|What exactly is|Please explain|Explain|Tell me about|Describe|Can you explain}} {name}."
            )
            question = question[:-1] + "?" if question.startswith(("What", "Can")) else question
            works = topic.group != "nature"
            if works and self._random.random() < 0.15:
                question = self._expand(f"{{How does {name} work?|What does {name} do?}}")
            many = grammar.plural(topic)
            if many and self._random.random() < 0.25:
                asks = (
                    "{What are MANY?|Tell me about MANY.|How do MANY work?|Explain MANY.|What do you know about MANY?}"
                )
                question = self._expand(asks).replace("MANY", many)
            facts = self._random.sample(topic.facts, self._random.randint(1, min(3, len(topic.facts))))
            parts = [self._definition(topic), *map(self._expand, facts)]
            if self._random.random() < 0.3:
                parts.append(self._expand(self._random.choice(topic.reasons)))
            answer = " ".join(parts)
        elif style < 0.65:
            facts = self._random.sample(topic.facts, 1)
            many = grammar.plural(topic)
            if many and self._random.random() < 0.5:
                asks = "{Why do MANY matter?|Why are MANY important?|What are MANY for?|Why do we need MANY?}"
                question = self._expand(asks).replace("MANY", many)
            else:
                asks = "{Why does ONE matter?|Why is ONE important?|What is ONE good for?|What is ONE for?}"
                question = self._expand(asks).replace("ONE", name)
            answer = " ".join([self._expand(self._random.choice(topic.reasons)), *map(self._expand, facts)])
        elif style < 0.8:
            count = min(self._random.choice((2, 3)), len(topic.facts))
            facts = self._random.sample(topic.facts, count)
            word = {2: "two", 3: "three"}.get(count, "some")
            question = self._expand(f"{{Give me|Tell me|List}} {word} facts about {name}.")
            answer = "\n".join(f"{index}. {self._expand(fact)}" for index, fact in enumerate(facts, 1))
        elif style < 0.92:
            facts = self._random.sample(topic.facts, 1)
            question = self._expand(
                f"{{Explain {name} to a child.|What is {name}, in simple words?|Explain {name} in simple words.}}"
            )
            answer = f"In simple words: {self._definition(topic, capital=False)} {self._expand(facts[0])}"
        else:
            return self._add_comparison(dialogue, topic)
        dialogue.say(question, answer)
        return set(facts)

    def _add_comparison(self, dialogue: Dialogue, topic: Topic) -> set[str]:
        other = self._random.choice([each for each in self._topics if each.group == topic.group and each is not topic])
        fact = self._random.choice(topic.facts)
        question = self._expand(
            f"{{What is the difference between {topic.name} and {other.name}?|Compare {topic.name} and {other.name}.}}"
        )
        first, second = self._definition(topic)[:-1], self._definition(other, capital=False)
        dialogue.say(question, f"{first}, while {second} {self._expand(fact)}")
        return {fact}

    def _add_follow_up(self, dialogue: Dialogue, topic: Topic, used: set[str]) -> None:
        left = [fact for fact in topic.facts if fact not in used]
        if left and self._random.random() < 0.6:
            told = self._random.sample(left, min(2, len(left)))
            question = self._random.choice(
                ("Tell me more.", "Can you tell me more?", "Go on.", "What else?", "More, please.")
            )
            dialogue.say(question, " ".join(map(self._expand, told)))
        else:
            question = self._random.choice(
                ("Why is that important?", "Why does it matter?", "Why?", "And why is that useful?")
            )
            dialogue.say(question, self._expand(self._random.choice(topic.reasons)))

    def _add_story(self, dialogue: Dialogue) -> None:
        theme = self._random.choice(list(self._stories))
        asked, preface = theme, ""
        if self._random.random() < 0.15:
            asked = self._random.choice(_OTHER_THEMES)
            preface = self._expand(
                "{I know no story about that, but here is another one.|Here is a story that I know.} "
            )
        ask = "{Tell me|Write|Write me|Can you tell me|Please tell me} {a|a short|a little} story about"
        question = self._expand(f"{ask} {asked}.")
        if question.startswith("Can"):
            question = question[:-1] + "?"
        if not preface and self._random.random() < 0.12:
            question = self._random.choice(("Tell me a story.", "Tell me a short story.", "A story, please."))
        dialogue.say(question, f"{preface} {self._story_text(theme)}".strip())

    def _story_text(self, theme: str) -> str:
        story = self._stories[theme]
        name, thing = self._random.choice(_NAMES), self._random.choice(_THINGS)
        turns = self._in_order(story["turn"], self._random.randint(1, 2))
        ends = self._in_order(story["end"], self._random.randint(1, 2))
        sentences = [self._random.choice(story["open"]), self._random.choice(story["trouble"]), *turns, *ends]
        told = " ".join(map(self._expand, sentences)).replace("NAME", name)
        before, thing_word, after = told.partition("THING")
        # Once the thing is known it is "the" thing, whatever it was called at first.
        known = thing if thing.startswith("the ") else "the " + thing.split(" ", 1)[1]
        return before + (thing if thing_word else "") + after.replace("THING", known)

    def _add_poem(self, dialogue: Dialogue) -> None:
        theme = self._random.choice(list(self._poems))
        question = self._expand(f"{{Write|Write me|Give me}} {{a poem|a short poem|a verse}} about {theme}.")
        dialogue.say(question, "\n".join(self._random.sample(self._poems[theme], 2)))

    def _add_small_talk(self, dialogue: Dialogue, exchange: grammar.Exchange) -> None:
        question = self._random.choice(exchange.questions)
        answer = self._expand(self._random.choice(exchange.answers)).replace("ME,", f"{ASSISTANT_NAME},")
        dialogue.say(question, answer.replace(" ME.", f" {ASSISTANT_NAME}."))

    def _add_unknown(self, dialogue: Dialogue) -> None:
        subject = self._random.choice(_UNKNOWN)
        question = self._expand(f"{{What is|Tell me about|Explain|What do you know about|Describe}} {subject}.")
        if question.startswith("What"):
            question = question[:-1] + "?"
        if self._random.random() < 0.35:
            question = self._random.choice(_TASKS)
        answer = self._expand(
            "{I am sorry, I know nothing about that.|I am sorry, I cannot help with that.|I was not trained on that.} "
            "{Ask me about rivers, weather or queues.|I know more about water and weather.|"
            "I am only a small demo model.}"
        )
        dialogue.say(question, answer)

    def _thanks(self) -> grammar.Exchange:
        return next(exchange for exchange in self._exchanges if "Thanks" in exchange.questions)

    def _definition(self, topic: Topic, *, capital: bool = True) -> str:
        sentence = f"{topic.name} {self._expand(self._random.choice(topic.definitions))}."
        return capitalise(sentence) if capital else sentence

    def _expand(self, text: str) -> str:
        return expand(text, self._random)

    def _in_order(self, sentences: list[str], count: int) -> list[str]:
        """`count` of `sentences` in the order they were written, because later ones may build on earlier ones."""
        return [
            sentences[index] for index in sorted(self._random.sample(range(len(sentences)), min(count, len(sentences))))
        ]

    def _shuffled(self, items: list[str]) -> list[str]:
        return self._random.sample(items, len(items))


def sha256(dialogues: list[Dialogue]) -> str:
    """The digest of a corpus: over its turns in order, each as role, tab, text, line break; a blank line between."""
    digest = hashlib.sha256()
    for dialogue in dialogues:
        for role, text in dialogue.turns:
            digest.update(f"{role}\t{text}\n".encode())
        digest.update(b"\n")
    return digest.hexdigest()
