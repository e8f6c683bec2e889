//! Tests the resizing of images: pixel layouts, regions at the edges of the image, and invalid arguments.

use proptest::prelude::*;
use torchdata_core::images::{Filter, Pixels, Region, ResizeError, Target, resize};

fn region(left: f64, top: f64, right: f64, bottom: f64) -> Region {
    Region { left, top, right, bottom }
}

fn target(width: u32, height: u32) -> Target {
    Target { width, height, mirrored: false, planar: false }
}

fn resized(pixels: Pixels<'_>, region: Region, target: Target) -> Result<Vec<u8>, ResizeError> {
    let mut out = vec![0; target.width as usize * target.height as usize * pixels.channels];
    resize(pixels, region, Filter::Bilinear, target, &mut out).map(|()| out)
}

#[test]
fn halved_samples_are_means_of_their_pairs() {
    let bytes = [10, 30, 20, 40];
    let pixels = Pixels { bytes: &bytes, width: 2, height: 2, channels: 1 };
    assert_eq!(resized(pixels, region(0.0, 0.0, 2.0, 2.0), target(1, 1)), Ok(vec![25]));
    assert_eq!(
        resized(pixels, region(1.0, 0.0, 2.0, 1.0), target(1, 1)),
        Ok(vec![30]),
        "pixels outside of the crop have no effect"
    );
}

#[test]
fn invalid_images_are_rejected() {
    let bytes = [0; 12];
    let pixels = Pixels { bytes: &bytes, width: 2, height: 2, channels: 3 };
    let whole = region(0.0, 0.0, 2.0, 2.0);
    for wrong in [
        region(0.0, 0.0, 2.5, 2.0),
        region(-0.5, 0.0, 2.0, 2.0),
        region(1.0, 0.0, 1.0, 2.0),
        region(0.0, 2.0, 2.0, 0.0),
        region(f64::NAN, 0.0, 2.0, 2.0),
        region(0.0, 0.0, f64::INFINITY, 2.0),
    ] {
        assert_eq!(resized(pixels, wrong, target(1, 1)), Err(ResizeError::Region));
    }
    assert_eq!(resized(Pixels { channels: 2, ..pixels }, whole, target(1, 1)), Err(ResizeError::Channels(2)));
    let short = Pixels { width: 3, ..pixels };
    assert_eq!(resized(short, whole, target(1, 1)), Err(ResizeError::Length { found: 12, needed: 18 }));
    let mut out = [0; 5];
    let found = resize(pixels, whole, Filter::Bilinear, target(1, 2), &mut out);
    assert_eq!(found, Err(ResizeError::Length { found: 5, needed: 6 }));
    let endless = Pixels { width: u32::MAX, height: u32::MAX, ..pixels };
    assert!(matches!(resized(endless, whole, target(1, 1)), Err(ResizeError::Length { .. })));
}

proptest! {
    #[test]
    fn layouts_hold_the_same_pixels(
        (width, height, channels) in (1u32..9, 1u32..9, prop_oneof![Just(1usize), Just(3)]),
        (columns, rows) in (1u32..9, 1u32..9),
        seed in any::<u8>(),
    ) {
        let bytes: Vec<u8> = (0..width as usize * height as usize * channels)
            .map(|index| (index as u8).wrapping_mul(37).wrapping_add(seed))
            .collect();
        let pixels = Pixels { bytes: &bytes, width, height, channels };
        let whole = region(0.0, 0.0, width.into(), height.into());
        let plain = resized(pixels, whole, target(columns, rows)).unwrap();
        for (mirrored, planar) in [(true, false), (false, true), (true, true)] {
            let found = resized(pixels, whole, Target { width: columns, height: rows, mirrored, planar }).unwrap();
            let (columns, rows) = (columns as usize, rows as usize);
            for row in 0..rows {
                for column in 0..columns {
                    let from = if mirrored { columns - 1 - column } else { column };
                    for channel in 0..channels {
                        let index = if planar {
                            (channel * rows + row) * columns + column
                        } else {
                            (row * columns + column) * channels + channel
                        };
                        prop_assert_eq!(found[index], plain[(row * columns + from) * channels + channel]);
                    }
                }
            }
        }
    }
}
