package filters

import (
	"strings"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/web/limits"
)

// maxReview is the size of the largest AdmissionReview that package admission accepts.
const maxReview = 6 << 20

// BodyBound returns a function that returns the bound of a request's body. limit bounds the body's
// bytes.
//
// Kubernetes joins the errors of all values to one message, so the time to check an object of its
// own kinds can grow with the square of the number of values. So each value weighs much. Reviews,
// which every user may create, may have few values. Our own kinds have many values, a stream for
// example several for each of its tags, but the time to check them only grows in proportion.
func BodyBound(limit int64) func(*request.RequestInfo) limits.BodyBound {
	return func(info *request.RequestInfo) limits.BodyBound {
		switch info.APIGroup {
		case "authentication.k8s.io", "authorization.k8s.io", "authorization.openshift.io":
			values := 1000 // a user may be in many groups
			if strings.HasPrefix(info.Resource, "selfsubject") {
				values = 200 // reviews of one's own access need few values
			}
			return limits.BodyBound{Bytes: int(limit), Values: values, Value: 8 << 10}
		case "image.openshift.io", "config.openshift.io":
			return limits.BodyBound{Bytes: int(limit), Values: 50_000, Value: 256}
		case "tidewaiter.dev":
			switch info.Resource {
			case "admissionreviews":
				return limits.BodyBound{Bytes: maxReview, Values: 50_000, Value: 256}
			case "imagerecords":
				return limits.BodyBound{Bytes: int(limit), Values: 50_000, Value: 256}
			}
		}
		return limits.BodyBound{Bytes: int(limit), Values: 10_000, Value: 8 << 10}
	}
}
