"""Compress-and-Route's compressor: prompts just above a pool boundary shortened to fit below it, and the gateway that does so.

FleetOpt paper, section 5. An extractive pipeline without a language model: sentences are scored and the best are kept, in
their order, until a token budget is reached. Needs the extra ``compress`` (sentence splitting, TF-IDF, HTTP).
"""
