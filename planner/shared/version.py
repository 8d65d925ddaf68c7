"""The version, in one place that any module may import."""

__version__ = "0.1.0"
