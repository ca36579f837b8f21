package image

import (
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// maxIndexVerdicts bounds how many images one index vouches for, and in how many repositories.
const maxIndexVerdicts = 1000

// maxVerifiedIndexes bounds how many verified indexes that list an image in a repository are read.
const maxVerifiedIndexes = 16

// verifiedRepositories returns the repositories in which an index is verified, for all pods and for
// the pods of single namespaces, sorted. There the index vouches for the images that its manifest
// lists. An Image without its manifest lists what a client wrote, and vouches for nothing.
func verifiedRepositories(index *imagev1.Image) []string {
	if len(index.DockerImageManifests) == 0 || index.DockerImageManifest == "" {
		return nil
	}
	var repositories []string
	for repository, v := range annotation.JudgedAnywhere(index.Annotations) {
		if verdicts.IsVerified(v.Verified) {
			repositories = append(repositories, repository)
		}
	}
	slices.Sort(repositories)
	return repositories
}

// indexVerdicts returns the images that an index vouches for, each as <repository>@<digest>.
func indexVerdicts(index *imagev1.Image) []string {
	var all []string
	for _, repository := range verifiedRepositories(index) {
		for _, m := range index.DockerImageManifests {
			if len(all) == maxIndexVerdicts {
				return all
			}
			all = append(all, repository+"@"+m.Digest)
		}
	}
	return all
}

// reportIndexVerdict reports a write after which an index is verified in other repositories than
// before.
func (r *REST) reportIndexVerdict(obj runtime.Object, before []string) {
	index, ok := obj.(*imagev1.Image)
	if !ok || slices.Equal(verifiedRepositories(index), before) {
		return
	}
	r.observer.IndexVerdictChanged(index)
}
