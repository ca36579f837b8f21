package filters

import (
	"strings"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/web/limits"
)

// maxReview is the size of an AdmissionReview, as package admission takes it.
const maxReview = 6 << 20

// BodyBound is the bound of the body of a request; limit is that of its bytes.
//
// Checking objects of Kubernetes' own kinds can take time that grows with the square of the number
// of their values, since a message is put together of all errors. So they weigh much. Reviews,
// which everybody may make, have few. Our own kinds have many, a stream for example several for
// each of its tags, and are checked in proportion to them.
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
