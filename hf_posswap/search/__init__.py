"""Searches on the user's own model and text."""

from hf_posswap.search.longrope import search_longrope
from hf_posswap.search.result import Generation, SearchResult

__all__ = ["Generation", "SearchResult", "search_longrope"]
