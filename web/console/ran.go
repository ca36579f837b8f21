package console

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// runsPath is where the API lists what ran.
const runsPath = "/apis/tidewaiter.dev/v1/imageruns"

// Bounds on the records of a page.
const (
	ranRead  = 100 // stretches that the page of an image reads
	ranShown = 20  // and shows: those that began last
)

// imageRun is a stretch of time in which a workload ran an image.
type imageRun struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		Cluster   text      `json:"cluster"`
		Workload  text      `json:"workload"`
		Container text      `json:"container"`
		Image     text      `json:"image"`
		Digest    text      `json:"digest"`
		From      time.Time `json:"from"`
	} `json:"spec"`
	Status struct {
		Until    time.Time `json:"until"` // zero while it runs
		MostPods int       `json:"mostPods"`
		Verdicts []struct {
			Since    time.Time `json:"since"`
			Verified text      `json:"verified"`
			Reason   text      `json:"reason"`
			Signers  []text    `json:"signers"`
			Cause    text      `json:"cause"` // empty for the first, and by older servers
		} `json:"verdicts"`
		VerdictsDropped int `json:"verdictsDropped"`
		Unseen          []struct {
			From  time.Time `json:"from"`
			Until time.Time `json:"until"` // zero while it goes on
		} `json:"unseen"`
	} `json:"status"`
}

// EndUnseen reports whether the cluster could not be seen when the stretch ended: it ended at some
// time before.
func (r imageRun) EndUnseen() bool {
	n := len(r.Status.Unseen)
	return !r.Status.Until.IsZero() && n > 0 && !r.Status.Unseen[n-1].Until.Before(r.Status.Until)
}

// ranView has what ran, or why that is not known.
type ranView struct {
	Rows    []imageRun
	More    bool
	Unknown []text // what is not known about the time that was asked about
	Refused *notice
	Next    string
	Bars    *bars // nil if nothing is known to have run
}

// ran lists what ran.
func (v *visit) ran(limit int, selector, after string) (*ranView, error) {
	ask := url.Values{"limit": {fmt.Sprint(limit)}, "fieldSelector": {selector}}
	if after != "" {
		ask.Set("continue", after)
	}
	var runs list[imageRun]
	warnings, err := v.call.getWarned(v.ctx(), runsPath, ask, &runs)
	if isCode(err, http.StatusGone) {
		ask.Del("continue")
		warnings, err = v.call.getWarned(v.ctx(), runsPath, ask, &runs)
	}
	if isCode(err, http.StatusUnauthorized) {
		return nil, err
	}
	return &ranView{Rows: runs.Items, More: runs.Metadata.Continue != "", Next: runs.Metadata.Continue, Unknown: warnings, Refused: noticeOf("list what ran", err)}, nil
}

// overTime lists and draws what ran, what began last first. of names the lines of the drawing.
func (v *visit) overTime(selector string, of func(*imageRun) bar) (*ranView, error) {
	data, err := v.ran(ranRead, selector, "")
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(data.Rows, func(a, b imageRun) int { return b.Spec.From.Compare(a.Spec.From) })
	data.Bars = barsOf(data.Rows, v.clock.Now(), of)
	if len(data.Rows) > ranShown {
		data.Rows, data.More = data.Rows[:ranShown], true
	}
	return data, nil
}

// workloadOverTime lists and draws what a workload ran, if the filters of the page of what runs
// name one, whether it still runs or not.
func (v *visit) workloadOverTime(data *runningView) (err error) {
	name := data.Pod
	if len(data.Workloads) == 1 {
		name = string(data.Workloads[0].Kind + "/" + data.Workloads[0].Name)
	}
	if data.Cluster == "" || data.Namespace == "" || data.Pod == "" || len(data.Workloads) > 1 {
		return nil
	}
	data.OverTime, err = v.overTime("cluster="+escapeTerm(data.Cluster)+",namespace="+escapeTerm(data.Namespace)+",workload="+escapeTerm(name), lineOfImage)
	return err
}

// momentOf reads a time in UTC as a form sends it, or as the API has it.
func momentOf(value string) (at time.Time, ok bool) {
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339} {
		if at, err := time.Parse(layout, value); err == nil {
			return at.UTC(), true
		}
	}
	return at, false
}

// ranSelector turns the filters of the page Running into a selector for the records of a time, and
// into the command that shows the same.
func ranSelector(values map[string]string, at time.Time) (selector, command string) {
	then := at.Format(time.RFC3339)
	terms, args := []string{"at=" + then}, []string{"tidewaiter ran --at " + then}
	for _, f := range [][3]string{{"cluster", "cluster", "--cluster "}, {"namespace", "namespace", "-n "}, {"pod", "workload", "--workload "}, {"verified", "verified", "--verified "}, {"image", "image", ""}} {
		if value := values[f[0]]; value != "" {
			if f[2] == "" && value[0] == '-' {
				f[2] = "-- " // it is no flag
			}
			terms, args = append(terms, f[1]+"="+escapeTerm(value)), append(args, f[2]+quoted(value))
		}
	}
	return strings.Join(terms, ","), strings.Join(args, " ")
}

// ranAt shows what ran at a time.
func (v *visit) ranAt(data *runningView, asked string) error {
	p := &page{Name: "running", Title: "Running", Nav: "running", Data: data}
	at, ok := momentOf(asked)
	if !ok {
		data.Ran = &ranView{Unknown: []text{text(printable.Line(asked, maxText)) + " is not a time such as 2026-11-24T16:45"}}
		return v.show(p)
	}
	data.At = at.Format("2006-01-02T15:04")
	query := v.r.URL.Query()
	selector, command := ranSelector(data.Filters, at)
	var err error
	if data.Ran, err = v.ran(podRows, selector, query.Get("continue")); err != nil {
		return err
	}
	if data.Ran.Next != "" {
		query.Set("continue", data.Ran.Next)
		data.Next = Root + "running?" + query.Encode()
	}
	p.Commands = []string{"kubectl get imageruns -A --field-selector " + quoted(selector), command}
	return v.show(p)
}
