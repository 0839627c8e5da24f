"""How long answers are, learned from what requests generated: for admission's charges, waits and KV reservations, and
for the gateway's reservations of quota. Pure."""

from libs.answer_lengths.lengths import Lengths

__all__ = ["Lengths"]
