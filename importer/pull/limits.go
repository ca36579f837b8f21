package pull

import (
	"fmt"
	"time"
)

// Limits have a default for every field that is zero.
type Limits struct {
	// Concurrency is how many children of one index are read at a time (4).
	Concurrency int
	// HostConcurrency is how many requests are sent to one host at a time (8).
	HostConcurrency int
	// HostRate is how many requests a second one host gets, after a burst of HostBurst (two seconds'
	// worth). With zero, the rate starts at 200 and adapts to the host, between 10 and 51,200; Docker
	// Hub gets 20.
	HostRate  float64
	HostBurst int
	// Attempts is how often a request is tried that fails for a temporary reason (3). After 502 and
	// 504 it is tried twice as often.
	Attempts int
	// MaxWait is how long a request waits at most for the end of a registry's Retry-After (20 s). If
	// the registry asks for longer, the request fails, and so do all other requests to that host until
	// the pause ends.
	MaxWait time.Duration
	// Stall is how long a registry may send nothing (30 s).
	Stall time.Duration
	// MinRate is the least speed of a body, in bytes per second, averaged over the time spent
	// waiting for it, once that exceeds Stall (1024).
	MinRate int64
	// Request is the longest a manifest, a config, a list or a token may
	// take (2 min); Layer is the same for a layer (1 h).
	Request, Layer time.Duration
	// JobManifests, JobRequests and JobBytes bound one job: manifests read (1,024); requests,
	// including retries and those for signatures (10,000); and bytes read, except layers (512 MiB). A
	// job that needs more ends with reason OverBudget.
	JobManifests, JobRequests, JobBytes int64
	// JobContent is to how many bytes the layers of one job may unpack, in addition to 50 times the
	// bytes read (1 GiB).
	JobContent int64
	// WindowBytes bounds the memory for decoding zstd in all layers together (256 MiB). A layer may
	// need 32 MiB. One image has at most Concurrency layers verified at a time.
	WindowBytes int64
	// JobTime is the longest a job may take (15 min; 12 h where layers are verified).
	JobTime time.Duration
	// Recycle is how long greetings and sessions of a host or a repository are used (30 min).
	Recycle time.Duration
}

// Bounds that are not for tuning.
const (
	maxHosts        = 256  // hosts remembered
	maxRepositories = 1024 // repositories remembered
)

// WithDefaults sets the default of each field that is zero. layers is true if layers are verified.
func (l Limits) WithDefaults(layers bool) Limits {
	setDefault(&l.Concurrency, 4)
	setDefault(&l.HostConcurrency, 8)
	setDefault(&l.Attempts, 3)
	setDefault(&l.MaxWait, 20*time.Second)
	setDefault(&l.Stall, 30*time.Second)
	setDefault(&l.MinRate, 1024)
	setDefault(&l.Request, 2*time.Minute)
	setDefault(&l.Layer, time.Hour)
	setDefault(&l.JobManifests, 1024)
	setDefault(&l.JobRequests, 10_000)
	setDefault(&l.JobBytes, 512<<20)
	setDefault(&l.JobContent, 1<<30)
	setDefault(&l.WindowBytes, 256<<20)
	if layers {
		setDefault(&l.JobTime, 12*time.Hour)
	}
	setDefault(&l.JobTime, 15*time.Minute)
	setDefault(&l.Recycle, 30*time.Minute)
	return l
}

func setDefault[T int | int64 | float64 | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Validate fails for limits that are negative.
func (l Limits) Validate() error {
	if l.Concurrency < 0 || l.HostConcurrency < 0 || l.HostRate < 0 || l.HostBurst < 0 || l.Attempts < 0 || l.MaxWait < 0 ||
		l.Stall < 0 || l.MinRate < 0 || l.Request < 0 || l.Layer < 0 || l.Recycle < 0 ||
		l.JobManifests < 0 || l.JobRequests < 0 || l.JobBytes < 0 || l.JobContent < 0 || l.WindowBytes < 0 || l.JobTime < 0 {
		return fmt.Errorf("limits must not be negative: %+v", l)
	}
	return nil
}
