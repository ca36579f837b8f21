package bulk

import (
	"time"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Job is one request to a registry: a list, or a reference to import.
type Job struct {
	Kind jobKind
	// Ref is the image that is imported or dated, or the repository that is listed. To list a
	// registry it has only a Host.
	Ref reference.Reference
	of  *choice // of a dateJob
}

type jobKind int8

const (
	ImportJob jobKind = iota
	ListJob
	dateJob
)

// ended is the result of a job: an import's result, the references of a list, or a date.
type ended struct {
	Job
	round    int // of the host, when the job began
	result   *importer.Result
	found    []reference.Reference
	unlisted []reference.Reference // known tags of a repository that its list lacks
	warnings []string
	created  time.Time
	err      error
}
