//! Decodes parts of JPEG images, and resizes images in arrays, without the GIL.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use torchdata_core::images::{self, Filter, Pixels, Region, Target};

/// # Arguments
/// * `source` - an array (height, width, channels) of bytes, with one or three channels.
/// * `region` - the left, top, right and bottom edges of the region in pixels, in the order of Pillow's boxes.
/// * `filter` - the name of a filter of Pillow, in lower case.
/// * `out` - the array to fill: (height, width, channels), or (channels, height, width) if `planar` is true.
#[pyfunction]
#[pyo3(signature = (source, region, filter, out, *, mirrored=false, planar=false))]
pub fn resize_pixels(
    py: Python<'_>,
    source: PyBuffer<u8>,
    region: (f64, f64, f64, f64),
    filter: &str,
    mut out: PyBuffer<u8>,
    mirrored: bool,
    planar: bool,
) -> PyResult<()> {
    let filter = filter_of(filter)?;
    let [height, width, channels] = axes(&source)?;
    let made = axes(&out)?;
    let [rows, columns, planes] = if planar { [made[1], made[2], made[0]] } else { made };
    if out.readonly() || planes != channels {
        return Err(PyBufferError::new_err("`out` must be a writable array with as many channels as the source has"));
    }
    let target = Target { width: columns, height: rows, mirrored, planar };
    let (left, top, right, bottom) = region;
    let region = Region { left, top, right, bottom };
    let (from, to) = (source.buf_ptr() as usize, out.buf_ptr() as usize);
    if from < to + out.len_bytes() && to < from + source.len_bytes() {
        return Err(PyBufferError::new_err("`out` must not share memory with the source"));
    }
    let done = py.detach(|| {
        // SAFETY: the buffers are contiguous and do not overlap.
        let (bytes, out) = unsafe { slices(&source, &mut out) };
        let pixels = Pixels { bytes, width, height, channels: channels as usize };
        images::resize(pixels, region, filter, target, out)
    });
    done.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Decodes a part of a JPEG image into `out`. Returns false if the extension was compiled without the feature `turbojpeg`,
/// or if the decoder refuses the image or the part.
///
/// # Arguments
/// * `part` - the left edge, the top edge, the width and the height in pixels of the reduced image.
/// * `reduction` - how much smaller the decoder makes the image: by a factor of 1, 2, 4 or 8.
/// * `out` - the buffer for the decoded pixels, which are stored without gaps.
#[pyfunction]
pub fn decode_jpeg_part(
    py: Python<'_>,
    content: PyBuffer<u8>,
    part: [u32; 4],
    reduction: u32,
    channels: u32,
    mut out: PyBuffer<u8>,
) -> PyResult<bool> {
    if out.readonly() || !out.is_c_contiguous() || !content.is_c_contiguous() {
        return Err(PyBufferError::new_err("`out` must be a writable, contiguous buffer, and `content` contiguous"));
    }
    Ok(py.detach(|| {
        // SAFETY: the buffers are contiguous, and `out` is the caller's memory for pixels.
        let (bytes, out) = unsafe { slices(&content, &mut out) };
        #[cfg(feature = "turbojpeg")]
        return torchdata_core::jpeg::decode_part(bytes, part, reduction, channels, out);
        #[cfg(not(feature = "turbojpeg"))]
        {
            let _ = (bytes, part, reduction, channels, out);
            false
        }
    }))
}

/// Returns the bytes of two buffers.
///
/// # Safety
/// The buffers must be contiguous, and must not overlap. If Python code writes to the buffers meanwhile, only the pixels in
/// the result are wrong.
unsafe fn slices<'a>(from: &'a PyBuffer<u8>, to: &'a mut PyBuffer<u8>) -> (&'a [u8], &'a mut [u8]) {
    // SAFETY: the references keep the buffers alive, and the caller guarantees that they are contiguous and do not overlap.
    unsafe {
        (
            std::slice::from_raw_parts(from.buf_ptr().cast(), from.len_bytes()),
            std::slice::from_raw_parts_mut(to.buf_ptr().cast(), to.len_bytes()),
        )
    }
}

fn axes(buffer: &PyBuffer<u8>) -> PyResult<[u32; 3]> {
    let shape: Option<Vec<u32>> = buffer.shape().iter().map(|&size| u32::try_from(size).ok()).collect();
    match shape.as_deref() {
        Some(&[first, second, third]) if buffer.is_c_contiguous() && buffer.len_bytes() > 0 => {
            Ok([first, second, third])
        }
        _ => Err(PyBufferError::new_err("images must be dense arrays with three axes and at least one pixel")),
    }
}

fn filter_of(name: &str) -> PyResult<Filter> {
    Ok(match name {
        "bilinear" => Filter::Bilinear,
        "hamming" => Filter::Hamming,
        _ => return Err(PyValueError::new_err(format!("there is no filter {name:?}"))),
    })
}
