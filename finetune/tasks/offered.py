"""What the commands learn where a caller hands in no other task."""

from .classification import Classification as DEFAULT

__all__ = ["DEFAULT"]
