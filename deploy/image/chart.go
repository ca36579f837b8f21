package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// Media types of a Helm chart in a registry:
// https://helm.sh/docs/topics/registries/#oci-feature-deprecation-and-behavior-changes-with-v380
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chartVersions finds the lines of Chart.yaml that name the version.
var chartVersions = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// writeChart replaces the folder dir with the Helm chart of a folder, of the release's version.
// `helm package` writes the time of each file into the archive; here all have the release's.
func (r *release) writeChart(dir, chart string) (v1.Hash, error) {
	files, about, err := r.chartFiles(chart)
	if err != nil {
		return v1.Hash{}, err
	}
	packed, err := r.pack(files)
	if err != nil {
		return v1.Hash{}, err
	}
	var content bytes.Buffer
	zip, err := gzip.NewWriterLevel(&content, gzip.BestCompression)
	if err != nil {
		return v1.Hash{}, err
	}
	if _, err := zip.Write(packed); err != nil {
		return v1.Hash{}, err
	}
	if err := zip.Close(); err != nil {
		return v1.Hash{}, err
	}

	if err := os.RemoveAll(dir); err != nil {
		return v1.Hash{}, err
	}
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	blob := func(mediaType types.MediaType, b []byte) (v1.Descriptor, error) {
		hash, size, err := v1.SHA256(bytes.NewReader(b))
		if err != nil {
			return v1.Descriptor{}, err
		}
		return v1.Descriptor{MediaType: mediaType, Size: size, Digest: hash}, at.WriteBlob(hash, io.NopCloser(bytes.NewReader(b)))
	}
	config, err := blob(chartConfig, about)
	if err != nil {
		return v1.Hash{}, err
	}
	layer, err := blob(chartContent, content.Bytes())
	if err != nil {
		return v1.Hash{}, err
	}
	manifest, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: config, Layers: []v1.Descriptor{layer}, Annotations: r.labels()})
	if err != nil {
		return v1.Hash{}, err
	}
	whole, err := blob(types.OCIManifestSchema1, manifest)
	if err != nil {
		return v1.Hash{}, err
	}
	whole.Annotations = map[string]string{"org.opencontainers.image.ref.name": r.version}
	return whole.Digest, at.AppendDescriptor(whole)
}

// chartFiles are the files of a chart below its name, in order, and its Chart.yaml as JSON.
func (r *release) chartFiles(chart string) (files []file, about []byte, err error) {
	root := os.DirFS(chart)
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		if name == "Chart.yaml" {
			content = chartVersions.ReplaceAll(content, []byte("${1}: \""+r.version+"\""))
			if about, err = yaml.YAMLToJSON(content); err != nil {
				return err
			}
		}
		files = append(files, file{name: path.Join("tidewaiter", filepath.ToSlash(name)), mode: 0o644, content: content})
		return nil
	})
	if err == nil && about == nil {
		err = errors.New(chart + " has no Chart.yaml")
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	return files, about, err
}
