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
    out: PyBuffer<u8>,
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
    let (from_len, to_len) = (source.len_bytes(), out.len_bytes());
    if from < to + to_len && to < from + from_len {
        return Err(PyBufferError::new_err("`out` must not share memory with the source"));
    }
    let done = py.detach(|| {
        // SAFETY: both buffers are contiguous, exist for the duration of this call, and do not overlap. If Python code
        // writes to a buffer during the call, only the pixels in the result are wrong.
        let (bytes, out) = unsafe {
            (
                std::slice::from_raw_parts(from as *const u8, from_len),
                std::slice::from_raw_parts_mut(to as *mut u8, to_len),
            )
        };
        let pixels = Pixels { bytes, width, height, channels: channels as usize };
        images::resize(pixels, region, filter, target, out)
    });
    done.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Decodes at least a part of a JPEG image into `out`, and returns the decoded part. Returns None if the extension was
/// compiled without the feature `turbojpeg`, or the decoder refuses the image.
///
/// # Arguments
/// * `part` - the left, top, right and bottom edges in pixels, after the reduction.
/// * `reduction` - the factor by which the decoder reduces the image: 1, 2, 4 or 8.
/// * `out` - the buffer for the decoded pixels, which are stored without gaps.
#[pyfunction]
pub fn decode_jpeg_part(
    py: Python<'_>,
    content: PyBuffer<u8>,
    part: (u32, u32, u32, u32),
    reduction: u32,
    channels: usize,
    out: PyBuffer<u8>,
) -> PyResult<Option<(u32, u32, u32, u32)>> {
    if out.readonly() || !out.is_c_contiguous() || !content.is_c_contiguous() {
        return Err(PyBufferError::new_err("`out` must be a writable, contiguous buffer, and `content` contiguous"));
    }
    #[cfg(feature = "turbojpeg")]
    {
        use torchdata_core::jpeg::{Part, decode_part};

        let (left, top, right, bottom) = part;
        let wanted = Part { left, top, width: right.saturating_sub(left), height: bottom.saturating_sub(top) };
        let (from, to) = (content.buf_ptr() as usize, out.buf_ptr() as usize);
        let decoded = py.detach(|| {
            // SAFETY: as for `resize_pixels`.
            let (bytes, out) = unsafe {
                (
                    std::slice::from_raw_parts(from as *const u8, content.len_bytes()),
                    std::slice::from_raw_parts_mut(to as *mut u8, out.len_bytes()),
                )
            };
            decode_part(bytes, wanted, reduction, channels, out)
        });
        Ok(decoded.map(|part| (part.left, part.top, part.left + part.width, part.top + part.height)))
    }
    #[cfg(not(feature = "turbojpeg"))]
    {
        let _ = (py, part, reduction, channels);
        Ok(None)
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
