//! Export status: metrics, coverage report and problems.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use serde::Serialize;
use trail::SpoolCounts;

use super::exporter::{Exporter, SendCounts};
use super::{Exports, PassCounts};

/// Fill ratio above which a spool is reported as a problem, before it evicts batches.
const FULL: f64 = 0.8;

/// An exporter in `/v1/flows/coverage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExportReport {
    /// `loki`, `otlp`, `otlp-metrics`, `goldmane` or `file`
    pub(crate) exporter: &'static str,
    /// Target of the sink.
    pub(crate) target: String,
    /// Records that the receiver accepted.
    pub(crate) sent: u64,
    /// Batches in the spool.
    pub(crate) waiting: u64,
    pub(crate) waiting_bytes: u64,
    /// Window of the oldest spooled batch; null if the spool is empty.
    pub(crate) oldest: Option<Timestamp>,
    /// Records that will never be sent.
    pub(crate) dropped: u64,
}

impl Exports {
    /// One report per exporter.
    pub(crate) fn reports(&self) -> Vec<ExportReport> {
        self.exporters.iter().map(|exporter| report(exporter)).collect()
    }

    /// Problems, as sentences for people.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for exporter in &self.exporters {
            let name = exporter.sink().name();
            let (send, (spool, fill)) = (exporter.send_counts(), exporter.spool_counts());
            if let Some(why) = send.failure {
                problems.push(format!("export to {name} fails and is retried: {why}"));
            }
            if send.refused + send.rejected > 0 {
                let why = send.last_refusal.unwrap_or_default();
                let count = send.refused + send.rejected;
                problems.push(format!("{name} refused {count} records, which are dropped; the last time: {why}"));
            }
            if let Some(why) = spool.write_failure {
                problems.push(format!("the spool of {name} cannot be written, records wait in memory: {why}"));
            }
            if spool.evicted > 0 {
                problems
                    .push(format!("{} records were evicted from the spool of {name}, which was full", spool.evicted));
            } else if fill >= FULL {
                problems.push(format!("the spool of {name} is {:.0} % full", fill * 100.0));
            }
            if spool.damaged > 0 {
                problems.push(format!("{} damaged batches in the spool of {name} were skipped", spool.damaged));
            }
        }
        let counts = self.counts().clone();
        if let Some(why) = counts.position_problem {
            problems.push(format!("the position of exports is not kept: {why}"));
        }
        if counts.unexported > 0 {
            problems.push(format!("{} records left memory before they were exported", counts.unexported));
        }
        problems
    }
}

fn report(exporter: &Exporter) -> ExportReport {
    let (send, (spool, _)) = (exporter.send_counts(), exporter.spool_counts());
    ExportReport {
        exporter: exporter.sink().name(),
        target: exporter.sink().target(),
        sent: send.sent_records,
        waiting: spool.batches,
        waiting_bytes: spool.disk_bytes + spool.memory_bytes,
        oldest: spool.oldest,
        dropped: send.refused + send.rejected + spool.evicted,
    }
}

/// Metrics of exports, read when they are scraped.
pub(crate) struct ExportCollector(pub(crate) Arc<Exports>);

impl fmt::Debug for ExportCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExportCollector")
    }
}

struct View {
    name: &'static str,
    send: SendCounts,
    spool: SpoolCounts,
    fill: f64,
}

impl Collector for ExportCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Self(exports) = self;
        if exports.is_empty() {
            return Ok(());
        }
        let views: Vec<View> = exports
            .exporters
            .iter()
            .map(|exporter| {
                let (spool, fill) = exporter.spool_counts();
                View { name: exporter.sink().name(), send: exporter.send_counts(), spool, fill }
            })
            .collect();
        passes(&mut encoder, &exports.counts())?;
        counters(&mut encoder, &views)?;
        gauges(&mut encoder, &views)
    }
}

fn passes(encoder: &mut DescriptorEncoder, counts: &PassCounts) -> fmt::Result {
    let counters = [
        ("export_lines", "Lines of the trail, each once", counts.lines),
        ("export_late_lines", "Lines of windows that had been exported before", counts.late),
        (
            "export_uncounted_lines",
            "Late lines without counts, since an earlier process may have exported their connections",
            counts.uncounted,
        ),
        (
            "export_unexported_records",
            "Flow records that left memory before they were exported, or could not be encoded",
            counts.unexported + counts.unencodable,
        ),
    ];
    for (name, help, value) in counters {
        ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
    }
    Ok(())
}

fn counters(encoder: &mut DescriptorEncoder, views: &[View]) -> fmt::Result {
    type Read = fn(&View) -> u64;
    let counters: [(&str, &str, Read); 5] = [
        ("export_sent_records", "Records accepted by the receiver", |view| view.send.sent_records),
        ("export_sent_batches", "Batches accepted by the receiver", |view| view.send.sent_batches),
        ("export_retries", "Failed attempts to send a batch, which are retried", |view| view.send.retries),
        ("export_spool_failures", "Failed writes to the spool, whose batches wait in memory", |view| {
            view.spool.write_failures
        }),
        ("export_damaged_batches", "Batches of the spool that were damaged and skipped", |view| view.spool.damaged),
    ];
    for (name, help, value) in counters {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for view in views {
            ConstCounter::new(value(view)).encode(family.encode_family(&[("exporter", view.name)])?)?;
        }
    }
    let help = "Records that will never be sent, by reason";
    let mut family = encoder.encode_descriptor("export_dropped_records", help, None, MetricType::Counter)?;
    for view in views {
        for (reason, value) in
            [("evicted", view.spool.evicted), ("refused", view.send.refused), ("rejected", view.send.rejected)]
        {
            let labels = [("exporter", view.name), ("reason", reason)];
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn gauges(encoder: &mut DescriptorEncoder, views: &[View]) -> fmt::Result {
    let now = Timestamp::now();
    let age = |view: &View| {
        let age = view.spool.oldest.map(|oldest| now.duration_since(oldest).as_secs_f64());
        age.unwrap_or_default().max(0.0)
    };
    let ages = Unit::Seconds;
    let help = "Time since the window of the oldest record that waits; 0 if none does";
    let mut family = encoder.encode_descriptor("export_oldest_unsent_age", help, Some(&ages), MetricType::Gauge)?;
    for view in views {
        ConstGauge::new(age(view)).encode(family.encode_family(&[("exporter", view.name)])?)?;
    }
    let help = "Bytes of batches that wait, by place";
    let mut family = encoder.encode_descriptor("export_spool", help, Some(&Unit::Bytes), MetricType::Gauge)?;
    for view in views {
        for (place, bytes) in [("disk", view.spool.disk_bytes), ("memory", view.spool.memory_bytes)] {
            let labels = [("exporter", view.name), ("place", place)];
            ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX)).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Share of the bound of the spool that is used";
    let mut family = encoder.encode_descriptor("export_spool_fill", help, Some(&Unit::Ratios), MetricType::Gauge)?;
    for view in views {
        ConstGauge::new(view.fill).encode(family.encode_family(&[("exporter", view.name)])?)?;
    }
    Ok(())
}
