"""Slots that advance in common iterations: how many are busy, how long requests take, how long they wait."""
