"""Duration of one engine iteration: canonical form, roofline prior, the papers' parameters derived from it."""
