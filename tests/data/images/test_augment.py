"""Augmentation: crops, flips and mixtures as functions of (seed, epoch, sample), and exactly what they do."""

import numpy as np

from linnet.data.images.augment import Augmentation, augment_draws, augment_pictures, mixture_partners

SAMPLES, EPOCHS = np.arange(50), np.full(50, 3)
GOLDEN = (0.6527702009682942, 0.11067824353160172)


def test_draws_depend_on_seed_epoch_and_sample_alone():
    draws = augment_draws(7, EPOCHS, SAMPLES)
    assert draws.shape == (50, 5)
    assert (draws >= 0).all() and (draws < 1).all()
    some = np.array([40, 3, 3])
    np.testing.assert_array_equal(augment_draws(7, np.full(3, 3), some), draws[some])
    for other in (augment_draws(8, EPOCHS, SAMPLES), augment_draws(7, EPOCHS + 1, SAMPLES)):
        assert not (other == draws).any()
    assert len(np.unique(draws)) == draws.size
    many = augment_draws(0, np.zeros(4000, np.int64), np.arange(4000))
    np.testing.assert_allclose(many.mean(axis=0), 0.5, atol=0.02)


def test_draws_never_change():
    """A new version of numpy or linnet must not change the images of a run that resumes."""
    found = augment_draws(1, np.array([2]), np.array([3]))[0]
    np.testing.assert_allclose(found[:2], GOLDEN, rtol=0, atol=1e-15)


def test_a_crop_shifts_the_picture_over_black():
    pixels = np.arange(1, 17, dtype=np.uint8).reshape(1, 1, 4, 4)
    draws = np.array([[0.0, 0.99, 0.9, 0, 0]])  # up to the top, right to the end
    found = augment_pictures(pixels, draws, Augmentation(crop=1))[0, 0]
    np.testing.assert_array_equal(found[0], 0)
    np.testing.assert_array_equal(found[1:, :3], pixels[0, 0, :3, 1:])
    np.testing.assert_array_equal(found[:, 3], 0)
    middle = augment_pictures(pixels, np.array([[0.5, 0.5, 0.9, 0, 0]]), Augmentation(crop=1))
    np.testing.assert_array_equal(middle, pixels)


def test_a_flip_turns_left_and_right():
    pixels = np.arange(32, dtype=np.uint8).reshape(2, 1, 4, 4)
    found = augment_pictures(pixels, np.array([[0, 0, 0.4, 0, 0], [0, 0, 0.6, 0, 0]]), Augmentation(flip=True))
    np.testing.assert_array_equal(found[0], pixels[0, :, :, ::-1])
    np.testing.assert_array_equal(found[1], pixels[1])


def test_partners_and_their_shares():
    partners, shares = mixture_partners(augment_draws(0, EPOCHS, SAMPLES), 0.4, 10)
    assert set(partners.tolist()) == set(range(10))
    assert shares.min() >= 0 and 0.3 < shares.max() <= 0.4
