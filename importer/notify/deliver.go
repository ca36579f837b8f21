package notify

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/job"
)

const (
	// bytes of an answer that are read, so that its connection can be used again
	maxAnswer = 16 << 10
	maxPause  = time.Hour // that a receiver may ask for
)

// undelivered is the error of a delivery that failed, with a text for people. Its cause is a
// *pull.Error, by which the queue decides when to try again.
type undelivered struct {
	text  string
	cause error
}

func (e *undelivered) Error() string { return e.text }

func (e *undelivered) Unwrap() error { return e.cause }

func failed(reason pull.Reason, text string) error {
	return &undelivered{text, pull.CausedBy(reason, text, nil)}
}

// Do sends a stored event to its receiver, as a runner.Work does. A receiver that does not answer
// is left alone for a while. It gives up events that the receiver refuses for good, and those for a
// receiver that is no longer configured.
func (n *Notifier) Do(ctx context.Context, j *Job) error {
	t, payload := n.targets()[string(j.Source)], j.Events[0].Payload
	if t == nil {
		return failed(pull.InvalidImage, "no receiver "+string(j.Source)+" is configured (notify)")
	}
	var event cloudEvent
	if err := json.Unmarshal([]byte(payload), &event); err != nil {
		return failed(pull.InvalidImage, "the stored event cannot be read")
	}
	req, err := n.request(ctx, t, &event, payload)
	if err != nil {
		return failed(pull.Timeout, err.Error()) // tried again until the configuration is mended
	}
	resp, err := t.client.Do(req)
	if err != nil {
		var of *url.Error
		if errors.As(err, &of) { // its text has the URL, in which a secret may be
			err = of.Err
		}
		if ctx.Err() != nil {
			return failed(pull.Canceled, "the server stops")
		}
		return failed(pull.Unreachable, "it does not answer: "+pull.Clean(err.Error()))
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	return answered(resp, n.Clock.Now())
}

// Done is part of runner.Work: nothing is left to do.
func (n *Notifier) Done(*Job) {}

// Failed is part of runner.Work. The runner has logged the failure.
func (n *Notifier) Failed(context.Context, *Job, job.Failure) {}

// Trace is part of runner.Work: an event is in no trace.
func (n *Notifier) Trace(*Job) string { return "" }

// Answered is part of runner.Work: receivers get no other requests.
func (n *Notifier) Answered(string) time.Time { return time.Time{} }

// EndPause is part of runner.Work: only the runner knows of pauses.
func (n *Notifier) EndPause(string) {}

// Words is part of runner.Work.
func (n *Notifier) Words() job.Words {
	return job.Words{
		Host: "receiver", Away: "A receiver of notifications does not take them; they wait and are retried from time to time",
		Back: "A receiver of notifications takes them again", Done: "Notified", Failed: "A notification failed",
	}
}

// request makes the request to send. Errors have no secret.
func (n *Notifier) request(ctx context.Context, t *target, event *cloudEvent, payload string) (*http.Request, error) {
	body, mediaType := payload, "application/cloudevents+json; charset=UTF-8"
	if t.Format == Slack {
		body, mediaType = slack(event), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.address.Get(), strings.NewReader(body))
	if err != nil {
		return nil, errors.New("its URL cannot be used")
	}
	req.Header.Set("Content-Type", mediaType)
	req.Header.Set("User-Agent", n.UserAgent)
	if token := t.token.Get(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if secrets := t.secrets.Get(); len(secrets) > 0 {
		sign(req.Header, secrets, event.ID, n.Clock.Now(), body)
	}
	return req, nil
}

// sign adds the headers of Standard Webhooks: a signature by each secret over the ID, the time and
// the body.
func sign(h http.Header, secrets []string, id string, at time.Time, body string) {
	seconds := strconv.FormatInt(at.Unix(), 10)
	var all []string
	for _, line := range secrets {
		secret, _ := decodeSecret(line) // it has been read
		mac := hmac.New(sha256.New, secret)
		fmt.Fprintf(mac, "%s.%s.%s", id, seconds, body)
		all = append(all, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", seconds)
	h.Set("webhook-signature", strings.Join(all, " "))
}

// slackText escapes text that is not Slack's markup, so that no tag or name calls @channel or shows
// a link.
var slackText = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// slack is an event as a message of Slack.
func slack(event *cloudEvent) string {
	// strings always marshal
	b, _ := json.Marshal(map[string]string{"text": slackText.Replace(event.Data.Message)})
	return string(b)
}

// answered returns nil if the receiver took the event, else the error that its answer means.
func answered(resp *http.Response, now time.Time) error {
	text := "it answers " + strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode)
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return nil
	case code == http.StatusGone: // it wants no more, by Standard Webhooks
		return failed(pull.InvalidImage, text)
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		return failed(pull.Denied, text)
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		cause := pull.CausedBy(pull.RateLimited, text, nil)
		asked, _ := pull.RetryAfter(resp.Header, now)
		cause.RetryAfter = min(asked, maxPause)
		return &undelivered{text, cause}
	case code/100 == 3:
		text += ", and redirects are not followed: set its URL"
	}
	return failed(pull.Unavailable, text)
}
