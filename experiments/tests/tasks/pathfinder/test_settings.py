"""The parameters of the levels."""

import pytest

from multistable_experiments.tasks.pathfinder.settings import LEVELS, settings


def test_lengths_match_the_release():
    found = {level: (s.folder, s.contour_length, s.distractor_length, s.distractors) for level, s in LEVELS.items()}
    assert found == {
        "easy": ("curv_baseline", 6, 2, 10),
        "intermediate": ("curv_contour_length_9", 9, 3, 10),
        "hard": ("curv_contour_length_14", 14, 4, 10),
    }


def test_unknown_level_raises():
    with pytest.raises(ValueError, match=r"^level must be one of easy, intermediate, hard, got 'harder'"):
        settings("harder")
