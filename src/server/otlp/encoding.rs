//! The metrics as an OpenTelemetry collector takes them (OTLP, "Metrics"): the same names and
//! labels as Prometheus gets, cumulative since the start of the process.

use std::{
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
        ResourceMetrics, ScopeMetrics, Sum, metric::Data, number_data_point,
    },
    resource::v1::Resource,
};
use prometheus::proto::{self, MetricFamily, MetricType};
use prost::Message as _;

use logcabin_base::metrics::gather;

/// The media type of [`request`].
pub(super) const CONTENT_TYPE: &str = "application/x-protobuf";

const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// Since when the metrics count, in nanoseconds since the Unix epoch.
static SINCE: LazyLock<u64> = LazyLock::new(now_ns);

/// Begins to count. Later calls have no effect.
pub(super) fn begin() {
    LazyLock::force(&SINCE);
}

/// An export request with all metrics of the process, which `attributes` identify.
pub(super) fn request(attributes: &[(&str, String)]) -> Vec<u8> {
    let times = Times { since: *SINCE, now: now_ns() };
    let metrics = gather().iter().filter_map(|family| times.metric(family)).collect();
    let scope = InstrumentationScope {
        name: "logcabin".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let attributes = attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    let of_resource = ResourceMetrics {
        resource: Some(Resource { attributes, ..Resource::default() }),
        scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, ..Default::default() }],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }.encode_to_vec()
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn attribute(name: &str, value: &str) -> KeyValue {
    let value = Some(any_value::Value::StringValue(value.to_owned()));
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value }), ..KeyValue::default() }
}

/// The unit that a name ends with, as UCUM writes it.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "",
    }
}

/// The period that the metrics cover.
#[derive(Clone, Copy)]
struct Times {
    since: u64,
    now: u64,
}

impl Times {
    /// A metric with the values of all its labels; `None` for a kind that no metric here has.
    fn metric(self, family: &MetricFamily) -> Option<Metric> {
        let values = family.get_metric();
        let numbers = |of: fn(&proto::Metric) -> f64| {
            values.iter().map(|value| self.number(value, of(value))).collect()
        };
        let data = match family.get_field_type() {
            MetricType::COUNTER => Data::Sum(Sum {
                data_points: numbers(|value| value.get_counter().get_value()),
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            }),
            MetricType::GAUGE => {
                Data::Gauge(Gauge { data_points: numbers(|value| value.get_gauge().get_value()) })
            }
            MetricType::HISTOGRAM => Data::Histogram(Histogram {
                data_points: values.iter().map(|value| self.histogram(value)).collect(),
                aggregation_temporality: CUMULATIVE,
            }),
            MetricType::SUMMARY | MetricType::UNTYPED => return None,
        };
        let name = family.name().to_owned();
        let (description, unit) = (family.help().to_owned(), unit(&name).to_owned());
        Some(Metric { name, description, unit, data: Some(data), ..Metric::default() })
    }

    fn number(self, value: &proto::Metric, number: f64) -> NumberDataPoint {
        NumberDataPoint {
            attributes: labels(value),
            start_time_unix_nano: self.since,
            time_unix_nano: self.now,
            value: Some(number_data_point::Value::AsDouble(number)),
            ..NumberDataPoint::default()
        }
    }

    fn histogram(self, value: &proto::Metric) -> HistogramDataPoint {
        let histogram = value.get_histogram();
        let count = histogram.get_sample_count();
        let (mut bounds, mut counts, mut below) = (Vec::new(), Vec::new(), 0);
        for bucket in histogram.get_bucket() {
            if bucket.upper_bound().is_finite() {
                let up_to = bucket.cumulative_count();
                bounds.push(bucket.upper_bound());
                counts.push(up_to.saturating_sub(below));
                below = up_to;
            }
        }
        counts.push(count.saturating_sub(below));
        HistogramDataPoint {
            attributes: labels(value),
            start_time_unix_nano: self.since,
            time_unix_nano: self.now,
            count,
            sum: Some(histogram.get_sample_sum()),
            bucket_counts: counts,
            explicit_bounds: bounds,
            ..HistogramDataPoint::default()
        }
    }
}

fn labels(value: &proto::Metric) -> Vec<KeyValue> {
    value.get_label().iter().map(|label| attribute(label.name(), label.value())).collect()
}
