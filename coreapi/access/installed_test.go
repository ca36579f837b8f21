package access

import (
	"bytes"
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// What deploy/kustomize and the chart give people is what the roles of a server on its own give, by
// the same names.
func TestInstalledRoles(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../../deploy/kustomize/tidewaiter.yaml", "../../deploy/chart/templates/roles.yaml"} {
		documents, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// What the chart's default values make of it, but for labels that these roles do not need.
		documents = bytes.ReplaceAll(documents, []byte("{{ .Values.rbac.aggregate | quote }}"), []byte(`"true"`))
		documents = bytes.ReplaceAll(documents, []byte(`{{- include "tidewaiter.labels" . | nindent 4 }}`), nil)
		installed := map[string]rbacv1.ClusterRole{}
		for _, document := range bytes.Split(documents, []byte("\n---\n")) {
			obj, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(document, nil, &rbacv1.ClusterRole{})
			if role, ok := obj.(*rbacv1.ClusterRole); ok && err == nil {
				installed[role.Name] = *role
			}
		}
		for _, want := range Roles() {
			if !strings.HasPrefix(want.Name, "tidewaiter:") {
				continue
			}
			got := installed[want.Name]
			if !equality.Semantic.DeepEqual(got.Rules, want.Rules) {
				t.Errorf("%s: %s is\n%v, want\n%v", file, want.Name, got.Rules, want.Rules)
			}
			for label, value := range want.Labels {
				if strings.HasPrefix(label, "rbac.authorization.k8s.io/") && got.Labels[label] != value {
					t.Errorf("%s: %s lacks the label %s", file, want.Name, label)
				}
			}
		}
	}
}
