package admission

import (
	"errors"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	kjson "sigs.k8s.io/json"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// mirrorAnnotation marks mirror pods. Kubelets create them to show static pods in the API.
const mirrorAnnotation = "kubernetes.io/config.mirror"

// maxImages bounds the distinct images of a pod.
const maxImages = 256

// pod has the fields of a Pod (core/v1) that matter here.
type pod struct {
	Metadata struct {
		Name         string            `json:"name"`
		GenerateName string            `json:"generateName"`
		Annotations  map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		InitContainers      []container `json:"initContainers"`
		Containers          []container `json:"containers"`
		EphemeralContainers []container `json:"ephemeralContainers"`
		Volumes             []struct {
			Image *struct {
				Reference string `json:"reference"`
			} `json:"image"`
		} `json:"volumes"`
		ServiceAccountName string `json:"serviceAccountName"`
		ImagePullSecrets   []struct {
			Name string `json:"name"`
		} `json:"imagePullSecrets"`
	} `json:"spec"`
}

type container struct {
	Image string `json:"image"`
}

// images returns the images that the pod names, each once: first of init containers, then of
// containers, ephemeral containers and volumes.
func (p *pod) images() []string {
	var all []string
	for _, list := range [][]container{p.Spec.InitContainers, p.Spec.Containers, p.Spec.EphemeralContainers} {
		for _, c := range list {
			all = append(all, c.Image)
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.Image != nil {
			all = append(all, v.Image.Reference)
		}
	}
	seen := map[string]bool{"": true} // an empty name stands for no image
	return slices.DeleteFunc(all, func(image string) bool {
		was := seen[image]
		seen[image] = true
		return was
	})
}

// review is a request that was read.
type review struct {
	request *admissionv1.AdmissionRequest
	// pods is true if the review is about the images of a pod.
	pods     bool
	pod, old pod
}

// parseReview reads an AdmissionReview. An error means that no API server sent it.
func parseReview(body []byte) (*review, error) {
	var got admissionv1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &got); err != nil {
		return nil, fmt.Errorf("this is not an AdmissionReview: %s", printable.Line(err.Error(), 200))
	}
	if want := admissionv1.SchemeGroupVersion.String(); got.Kind != "AdmissionReview" || got.APIVersion != want {
		return nil, fmt.Errorf("this is %.64q of %.64q; only an AdmissionReview of %s is accepted: set admissionReviewVersions", got.Kind, got.APIVersion, want)
	}
	if got.Request == nil || got.Request.UID == "" {
		return nil, errors.New("the AdmissionReview has no request, or one without a UID")
	}
	r := &review{request: got.Request}
	what := got.Request.Resource
	changes := got.Request.Operation == admissionv1.Create || got.Request.Operation == admissionv1.Update
	r.pods = what.Group == "" && what.Resource == "pods" && changes && (got.Request.SubResource == "" || got.Request.SubResource == "ephemeralcontainers")
	if !r.pods {
		return r, nil
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(got.Request.Object.Raw, &r.pod); err != nil {
		return nil, fmt.Errorf("the object is not a pod: %s", printable.Line(err.Error(), 200))
	}
	if got.Request.Operation == admissionv1.Update {
		if err := kjson.UnmarshalCaseSensitivePreserveInts(got.Request.OldObject.Raw, &r.old); err != nil {
			return nil, fmt.Errorf("the old object is not a pod: %s", printable.Line(err.Error(), 200))
		}
	}
	return r, nil
}

// isMirror reports whether the pod is a mirror pod: it has the annotation, and a node's kubelet
// sent it. The sender matters because every user who may create pods can write the annotation.
func (r *review) isMirror() bool {
	_, mirror := r.pod.Metadata.Annotations[mirrorAnnotation]
	sender := r.request.UserInfo
	_, isNode := nodeidentifier.NewDefaultNodeIdentifier().NodeIdentity(&user.DefaultInfo{Name: sender.Username, Groups: sender.Groups})
	return mirror && isNode
}

// added returns the images that the pod did not name before. The others were admitted then.
func (r *review) added() []string {
	old := map[string]bool{}
	for _, image := range r.old.images() {
		old[image] = true
	}
	return slices.DeleteFunc(r.pod.images(), func(image string) bool { return old[image] })
}

// name returns the pod's name, or its beginning if the name is not generated yet.
func (r *review) name() string {
	switch m := r.pod.Metadata; {
	case r.request.Name != "":
		return r.request.Name
	case m.Name != "":
		return m.Name
	default:
		return m.GenerateName
	}
}
