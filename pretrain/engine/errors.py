"""The exception type of the stage."""

from data_prep.errors import UserError


class PretrainError(UserError):
    """Pretraining cannot start or go on, for a reason a person can mend."""
