package config

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// clusterEntry is what a new cluster has in the file.
type clusterEntry struct {
	Name       string `yaml:"name"`
	Kubeconfig string `yaml:"kubeconfig"`
}

// WithCluster returns the content of the file with one more cluster, whose kubeconfig is relative
// to the file. All else stays as it is, and comments stay in any case.
func (c *Config) WithCluster(name, kubeconfig string) ([]byte, error) {
	entry, err := yaml.Marshal([]clusterEntry{{name, kubeconfig}})
	if err != nil {
		return nil, err
	}
	var failed error
	for _, edit := range []func(entry []byte) ([]byte, error){c.insertCluster, c.encodeCluster} {
		content, err := edit(entry)
		if err == nil {
			err = c.checkAdded(content, name)
		}
		if err == nil {
			return content, nil
		}
		failed = cmp.Or(failed, err)
	}
	return nil, cli.WithHint(failed, "extend %s by hand; its clusters need:\n%s", c.file, entry)
}

// checkAdded fails unless content has all that the file has, and one more cluster.
func (c *Config) checkAdded(content []byte, name string) error {
	with, err := Parse(c.file, content)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(with.Clusters), func(cluster Cluster) bool { return cluster.Name == name })
	with.Clusters = nil
	without := *c
	without.Clusters = nil
	if len(others) != len(c.Clusters) || len(others) > 0 && !reflect.DeepEqual(others, c.Clusters) || len(Changed(&without, with)) > 0 {
		return fmt.Errorf("%s cannot be extended without a change to something else", c.file)
	}
	return nil
}

// clustersKey returns the key clusters in a document, and its value; nil if there is none.
func clustersKey(document *yaml.Node) (key, value *yaml.Node) {
	if document.Kind == yaml.DocumentNode && document.Content[0].Kind == yaml.MappingNode {
		for pair := range slices.Chunk(document.Content[0].Content, 2) {
			if pair[0].Value == "clusters" {
				return pair[0], pair[1]
			}
		}
	}
	return nil, nil
}

// insertCluster puts lines below the key, or key and lines at the end: no other line changes.
func (c *Config) insertCluster(entry []byte) ([]byte, error) {
	lines := slices.Collect(strings.Lines(string(c.content)))
	key, value := clustersKey(&c.document)
	at, indent := len(lines), ""
	if key == nil {
		entry = append([]byte("clusters:\n"), entry...)
	} else {
		at = key.Line
		if value.Kind == yaml.SequenceNode {
			indent = strings.Repeat(" ", value.Column-1)
		}
	}
	if at > 0 && !strings.HasSuffix(lines[at-1], "\n") {
		lines[at-1] += "\n"
	}
	var added []string
	for line := range strings.Lines(string(entry)) {
		added = append(added, indent+line)
	}
	return []byte(strings.Join(slices.Insert(lines, at, added...), "")), nil
}

// encodeCluster writes the whole file anew: for one that has its clusters, or all, within brackets.
func (c *Config) encodeCluster(entry []byte) ([]byte, error) {
	var document, more yaml.Node
	if err := cmp.Or(yaml.Unmarshal(c.content, &document), yaml.Unmarshal(entry, &more)); err != nil {
		return nil, err
	}
	list := more.Content[0]
	switch _, value := clustersKey(&document); {
	case value == nil && document.Kind == yaml.DocumentNode && document.Content[0].Kind == yaml.MappingNode:
		root := document.Content[0]
		root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "clusters"}, list)
	case value != nil && value.Kind == yaml.SequenceNode:
		value.Content = append(value.Content, list.Content...)
	default:
		return nil, fmt.Errorf("%s: clusters is no list", c.file)
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := cmp.Or(e.Encode(&document), e.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
