import gc

from bundle.garbage import rare_collection


def test_rare_collection__block_ends__what_it_made_is_never_searched() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        with rare_collection():
            assert gc.get_threshold()[0] >= 50_000
            kept = [[number] for number in range(1000)]
        assert gc.get_freeze_count() >= frozen + len(kept)
    finally:
        gc.set_threshold(*before)
