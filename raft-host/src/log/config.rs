//! How the log is set up. A [`LogConfig`] can't hold a broken set.

use std::time::Duration;

use super::error::ConfigError;
use super::record::SECTOR_BYTES;
use crate::limits;

/// Whether what is acked was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Every batch is synced before it is acked.
    Durable,
    /// Nothing is: for experiments only. A power cut loses acked entries, or makes the log refuse
    /// to open.
    Unsafe,
}

/// The values as given.
#[derive(Clone, Copy, Debug)]
pub struct RawLogConfig {
    /// Bytes of a segment: a multiple of 512. A change takes hold with the next segment.
    pub segment_bytes: u64,
    /// Bytes of all segments together, beyond which entries are refused.
    pub bytes_max: u64,
    /// Whether to sync.
    pub sync: SyncMode,
    /// How long the log may be idle before a probe is synced (a quarter of the election timeout).
    pub probe_interval: Duration,
    /// Bytes of entries kept in memory, over all groups.
    pub cache_bytes: u64,
}

impl Default for RawLogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: limits::LOG_SEGMENT_BYTES,
            bytes_max: limits::LOG_BYTES_MAX,
            sync: SyncMode::Durable,
            probe_interval: Duration::from_millis(250),
            cache_bytes: limits::LOG_CACHE_BYTES,
        }
    }
}

/// The values, checked.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig(RawLogConfig);

impl TryFrom<RawLogConfig> for LogConfig {
    type Error = ConfigError;

    fn try_from(raw: RawLogConfig) -> Result<Self, ConfigError> {
        let (min, max) = (limits::LOG_SEGMENT_BYTES_MIN, limits::LOG_SEGMENT_BYTES_MAX);
        let segment_bytes = raw.segment_bytes;
        if !segment_bytes.is_multiple_of(SECTOR_BYTES as u64)
            || !(min..=max).contains(&segment_bytes)
        {
            return Err(ConfigError::SegmentBytes {
                got: segment_bytes,
                min,
                max,
            });
        }
        let segments = raw.bytes_max / segment_bytes;
        if segments < limits::LOG_SEGMENTS_MIN {
            let segments_min = limits::LOG_SEGMENTS_MIN;
            let bytes_max = raw.bytes_max;
            return Err(ConfigError::BytesMax {
                bytes_max,
                segment_bytes,
                segments_min,
            });
        }
        // A start lists 8 bytes for each, in at most a quarter of the segment.
        let segments_max = limits::LOG_SEGMENTS_MAX.min(segment_bytes / 64);
        if segments > segments_max {
            let bytes_max = raw.bytes_max;
            return Err(ConfigError::TooManySegments {
                bytes_max,
                segment_bytes,
                segments_max,
            });
        }
        if raw.probe_interval.is_zero() {
            return Err(ConfigError::ProbeInterval);
        }
        Ok(Self(raw))
    }
}

impl LogConfig {
    /// Bytes of a segment.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.0.segment_bytes
    }

    /// Bytes of all segments together.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.0.bytes_max
    }

    /// How many segments that is.
    #[must_use]
    pub fn segments_max(&self) -> u64 {
        self.0.bytes_max / self.0.segment_bytes
    }

    /// Bytes that entries may take of all that: a batch may leave the rest of a segment unused, so
    /// only three quarters of each count, and some segments are kept back.
    #[must_use]
    pub fn room_bytes_max(&self) -> u64 {
        (self.segments_max() - limits::LOG_SEGMENTS_RESERVED) * (self.0.segment_bytes / 4 * 3)
    }

    /// Whether to sync.
    #[must_use]
    pub fn sync(&self) -> SyncMode {
        self.0.sync
    }

    /// How long the log may be idle.
    #[must_use]
    pub fn probe_interval(&self) -> Duration {
        self.0.probe_interval
    }

    /// Bytes of entries kept in memory.
    #[must_use]
    pub fn cache_bytes(&self) -> u64 {
        self.0.cache_bytes
    }

    /// Bytes of records in one batch, and so in one submission.
    #[must_use]
    pub fn batch_bytes_max(&self) -> u64 {
        (self.0.segment_bytes / limits::LOG_BATCH_SEGMENT_DIVISOR).min(limits::LOG_BATCH_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_holds_and_impossible_values_are_refused_by_name() {
        let good = RawLogConfig::default();
        assert!(LogConfig::try_from(good).is_ok());
        let odd = RawLogConfig {
            segment_bytes: 1_000_001,
            ..good
        };
        assert!(matches!(
            LogConfig::try_from(odd),
            Err(ConfigError::SegmentBytes { .. })
        ));
        let small = RawLogConfig {
            bytes_max: 2 * good.segment_bytes,
            ..good
        };
        assert!(matches!(
            LogConfig::try_from(small),
            Err(ConfigError::BytesMax { .. })
        ));
        let many = RawLogConfig {
            segment_bytes: 16 * 1024,
            ..good
        };
        assert!(matches!(
            LogConfig::try_from(many),
            Err(ConfigError::TooManySegments { .. })
        ));
        let probe = RawLogConfig {
            probe_interval: Duration::ZERO,
            ..good
        };
        assert!(matches!(
            LogConfig::try_from(probe),
            Err(ConfigError::ProbeInterval)
        ));
    }
}
