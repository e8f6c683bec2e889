//! Crops and resizes decoded images. As in Pillow, the filters are antialiased.

use std::cell::RefCell;

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{PixelTrait, ResizeAlg, ResizeOptions, Resizer};

use crate::strided::Strided;

pub use fast_image_resize::FilterType as Filter;

/// The maximum size in bytes of the temporary buffers that a thread keeps for the next image.
const MOST_KEPT: usize = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    #[error("pixels have {0} channels, but must have 1 or 3")]
    Channels(usize),
    #[error("the buffer has {found} bytes, but the image needs {needed}")]
    Length { found: usize, needed: usize },
    #[error("the region is empty or reaches beyond the image")]
    Region,
}

/// A decoded image: rows of pixels from top to bottom, with one byte per channel.
#[derive(Debug, Clone, Copy)]
pub struct Pixels<'a> {
    pub bytes: &'a [u8],
    pub width: u32,
    pub height: u32,
    /// The number of channels per pixel (1 or 3), where each channel takes one byte.
    pub channels: usize,
}

/// A rectangular part of an image, in pixels. The coordinates may be fractions.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub width: u32,
    pub height: u32,
    pub mirrored: bool,
    /// Whether all values of the first channel precede all values of the second channel, and so on.
    pub planar: bool,
}

#[derive(Default)]
struct Scratch {
    resizer: Resizer,
    rows: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub fn resize(
    source: Pixels<'_>,
    region: Region,
    filter: Filter,
    target: Target,
    out: &mut [u8],
) -> Result<(), ResizeError> {
    let convolve = match source.channels {
        1 => convolve::<U8>,
        3 => convolve::<U8x3>,
        other => return Err(ResizeError::Channels(other)),
    };
    holds(source.bytes.len(), source.width, source.height, source.channels)?;
    holds(out.len(), target.width, target.height, source.channels)?;
    if out.is_empty() {
        return Ok(());
    }
    SCRATCH.with_borrow_mut(|scratch| {
        let Scratch { resizer, rows } = scratch;
        if !target.mirrored && (!target.planar || source.channels == 1) {
            convolve(resizer, source, region, filter, target, out)?;
        } else {
            rows.resize(out.len(), 0);
            convolve(resizer, source, region, filter, target, rows)?;
            lay_out(rows, source.channels, target, out);
        }
        if resizer.size_of_internal_buffers() + rows.capacity() > MOST_KEPT {
            *scratch = Scratch::default();
        }
        Ok(())
    })
}

fn holds(found: usize, width: u32, height: u32, channels: usize) -> Result<(), ResizeError> {
    let pixels = (width as usize).checked_mul(height as usize);
    match pixels.and_then(|pixels| pixels.checked_mul(channels)) {
        Some(needed) if needed == found => Ok(()),
        needed => Err(ResizeError::Length { found, needed: needed.unwrap_or(usize::MAX) }),
    }
}

/// Resizes the image with integer arithmetic only, because floating-point results could differ between two builds.
fn convolve<P: PixelTrait>(
    resizer: &mut Resizer,
    source: Pixels<'_>,
    region: Region,
    filter: Filter,
    target: Target,
    rows: &mut [u8],
) -> Result<(), ResizeError> {
    let Region { left, top, right, bottom } = region;
    let within = left >= 0.0 && top >= 0.0 && right <= source.width.into() && bottom <= source.height.into();
    if !(within && left < right && top < bottom) {
        return Err(ResizeError::Region);
    }
    let (column, row) = (left.floor(), top.floor());
    let (width, height) = (right.ceil() - column, bottom.ceil() - row);
    let whole =
        TypedImageRef::<P>::from_buffer(source.width, source.height, source.bytes).map_err(|_| ResizeError::Region)?;
    let part = TypedCroppedImage::new(whole, column as u32, row as u32, width as u32, height as u32)
        .map_err(|_| ResizeError::Region)?;
    let mut made = TypedImage::<P>::from_buffer(target.width, target.height, rows).map_err(|_| ResizeError::Region)?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).crop(
        left - column,
        top - row,
        right - left,
        bottom - top,
    );
    resizer.resize_typed(&part, &mut made, &options).map_err(|_| ResizeError::Region)
}

fn lay_out(rows: &[u8], channels: usize, target: Target, out: &mut [u8]) {
    let (width, height) = (target.width as usize, target.height as usize);
    let step = channels as isize;
    let along_row = if target.mirrored { -step } else { step };
    let first = if target.mirrored { (width - 1) * channels } else { 0 };
    let (plane, row, pixel) = ((channels, 1), (height, (width * channels) as isize), (width, along_row));
    let axes = if target.planar { [plane, row, pixel] } else { [row, pixel, plane] };
    if let Some(strided) = Strided::new(1, axes) {
        debug_assert_eq!(strided.len(), out.len());
        // SAFETY: the axes of `strided` cover each byte of `rows` exactly once. `out` is as long as `rows`, and cannot
        // overlap `rows`, because `out` is borrowed mutably.
        unsafe { strided.copy(rows[first..].as_ptr(), out.as_mut_ptr()) };
    }
}
