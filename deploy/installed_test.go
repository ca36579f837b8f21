// Package deploy checks what is installed: that it has no more rights, and reaches no more, than it
// needs.
package deploy

import (
	"bytes"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kubernetes/pkg/apis/networking"
	networkingconversion "k8s.io/kubernetes/pkg/apis/networking/v1"
	"k8s.io/kubernetes/pkg/apis/networking/validation"
	"sigs.k8s.io/yaml"
)

// read returns a file of this folder.
func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// installed are the objects of deploy/kustomize that Kubernetes itself has kinds for. The chart's
// tests show that it makes the same.
func installed(t *testing.T) (all []runtime.Object) {
	t.Helper()
	for _, document := range bytes.Split(read(t, "kustomize/tidewaiter.yaml"), []byte("\n---\n")) {
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			continue // an APIService
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, obj)
	}
	return all
}

// Nothing may read Secrets, unless somebody gives the role for that.
func TestNoSecretsByDefault(t *testing.T) {
	t.Parallel()
	reads := map[string]bool{} // roles that may read Secrets
	for _, obj := range installed(t) {
		switch role := obj.(type) {
		case *rbacv1.ClusterRole:
			reads[role.Name] = slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.Resources, "secrets") || slices.Contains(r.Resources, "*")
			})
		case *rbacv1.Role:
			t.Errorf("the role %s is not looked at", role.Name)
		}
	}
	if !reads["tidewaiter-pull"] {
		t.Error("there is no role to be given")
	}
	for _, obj := range installed(t) {
		var ref rbacv1.RoleRef
		switch binding := obj.(type) {
		case *rbacv1.ClusterRoleBinding:
			ref = binding.RoleRef
		case *rbacv1.RoleBinding:
			ref = binding.RoleRef
		}
		if reads[ref.Name] {
			t.Errorf("%s is bound, and may read Secrets", ref.Name)
		}
	}
}

// The server reaches registries, pods, DNS and kube-apiserver, and no address at which a cloud
// gives credentials away.
func TestNoMetadataByDefault(t *testing.T) {
	t.Parallel()
	var policy *networkingv1.NetworkPolicy
	for _, obj := range installed(t) {
		if p, ok := obj.(*networkingv1.NetworkPolicy); ok {
			policy = p
		}
	}
	if policy == nil || !slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
		t.Fatalf("there is no policy for what goes out: %v", policy)
	}
	networkingconversion.SetObjectDefaults_NetworkPolicy(policy)
	var internal networking.NetworkPolicy
	if err := networkingconversion.Convert_v1_NetworkPolicy_To_networking_NetworkPolicy(policy, &internal, nil); err != nil {
		t.Fatal(err)
	}
	if errs := validation.ValidateNetworkPolicy(&internal, validation.NetworkPolicyValidationOptions{}); errs != nil {
		t.Fatal(errs.ToAggregate())
	}
	reaches := func(address string, port int) bool {
		addr := netip.MustParseAddr(address)
		inside := func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(addr) }
		return slices.ContainsFunc(policy.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
			to := len(r.To) == 0 || slices.ContainsFunc(r.To, func(p networkingv1.NetworkPolicyPeer) bool {
				return p.IPBlock != nil && inside(p.IPBlock.CIDR) && !slices.ContainsFunc(p.IPBlock.Except, inside)
			})
			return to && (len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p networkingv1.NetworkPolicyPort) bool { return *p.Port == intstr.FromInt(port) }))
		})
	}
	for _, metadata := range []string{"169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::a9fe:a9fe"} {
		for _, port := range []int{53, 80, 443, 32526} {
			if reaches(metadata, port) {
				t.Errorf("%s is reached at port %d", metadata, port)
			}
		}
	}
	for address, port := range map[string]int{"203.0.113.7": 443, "10.0.0.1": 5000, "192.168.1.2": 443, "169.254.20.10": 53, "2001:db8::7": 443, "fd00::1": 6443} {
		if !reaches(address, port) {
			t.Errorf("%s is not reached at port %d", address, port)
		}
	}
}

// What the documents have people create by hand has no name that is installed, too: whichever came
// second would take the rights of the other away.
func TestDocumentedNamesAreOthers(t *testing.T) {
	t.Parallel()
	taken := map[string]bool{}
	for _, obj := range installed(t) {
		m, err := meta.Accessor(obj)
		if err != nil {
			t.Fatal(err)
		}
		taken[strings.ToLower(obj.GetObjectKind().GroupVersionKind().Kind)+" "+m.GetName()] = true
	}
	var created [][][]byte
	for _, name := range []string{"start/kubectl.md", "start/openshift.md", "tasks/cluster.md", "tasks/access.md", "reference/access.md"} {
		created = append(created, regexp.MustCompile(`create ((?:clusterrole|clusterrolebinding|serviceaccount) \S+)`).FindAllSubmatch(read(t, "../docs/"+name), -1)...)
	}
	if len(created) < 12 {
		t.Fatalf("only %d lines were found", len(created))
	}
	for _, c := range created {
		if taken[string(c[1])] {
			t.Errorf("%q is installed, too", c[1])
		}
	}
}

// Each alert says how bad it is and what it is, and its runbook is a section of
// docs/tasks/alerts.md that says what it means, how to look and what to do. No section is of
// another alert.
func TestAlertsHaveRunbooks(t *testing.T) {
	t.Parallel()
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert               string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(read(t, "chart/alerts.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(read(t, "../docs/tasks/alerts.md")), "\n## ")
	sections := map[string]string{}
	for section := range strings.SplitSeq(page, "\n## ") {
		name, text, _ := strings.Cut(section, "\n")
		sections[name] = text
	}
	for _, r := range file.Groups[0].Rules {
		if url := r.Annotations["runbook_url"]; url != "https://github.com/tidewaiter/tidewaiter/blob/main/docs/tasks/alerts.md#"+strings.ToLower(r.Alert) {
			t.Errorf("the runbook of %s is %s", r.Alert, url)
		}
		if s := r.Labels["severity"]; r.Annotations["summary"] == "" || s != "critical" && s != "warning" {
			t.Errorf("%s: %v, %v", r.Alert, r.Labels, r.Annotations)
		}
		for _, part := range []string{"**Meaning**: ", "**Look**: ", "**Do**: "} {
			if !strings.Contains(sections[r.Alert], part) {
				t.Errorf("docs/tasks/alerts.md has no %s of %s", part, r.Alert)
			}
		}
		delete(sections, r.Alert)
	}
	for name := range sections {
		t.Errorf("docs/tasks/alerts.md has a section %s, and no alert has that name", name)
	}
}

// Artifact Hub shows the chart with what it takes from Chart.yaml, and what that links to in this
// repository is there. The changelog begins with the chart's version, and says on at most 60 lines
// what users must do, and what is new for them.
func TestChartIsPresented(t *testing.T) {
	t.Parallel()
	var chart struct {
		Version, AppVersion, Icon string
		Keywords, Sources         []string
		Maintainers               []struct{ Name, URL string }
		Annotations               map[string]string
	}
	if err := yaml.Unmarshal(read(t, "chart/Chart.yaml"), &chart); err != nil {
		t.Fatal(err)
	}
	var links []struct{ Name, URL string }
	if err := yaml.UnmarshalStrict([]byte(chart.Annotations["artifacthub.io/links"]), &links); err != nil || len(links) == 0 {
		t.Errorf("the links are %v, %v", links, err)
	}
	for _, link := range append(links, struct{ Name, URL string }{"icon", chart.Icon}) {
		_, path, found := strings.Cut(link.URL, "/main/")
		if info, err := os.Stat("../" + path); !found || err != nil || info.Size() == 0 {
			t.Errorf("%s: %s: %v", link.Name, link.URL, err)
		}
	}
	// https://artifacthub.io/docs/topics/annotations/helm/
	categories := []string{"ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking", "security", "storage", "streaming-messaging", "skip-prediction"}
	if !slices.Contains(categories, chart.Annotations["artifacthub.io/category"]) || chart.Annotations["artifacthub.io/license"] != "Apache-2.0" {
		t.Errorf("%v", chart.Annotations)
	}
	if len(chart.Keywords) == 0 || len(chart.Sources) == 0 || len(chart.Maintainers) == 0 || !bytes.Contains(read(t, "chart/README.md"), []byte("helm install")) {
		t.Errorf("%+v lacks something", chart)
	}
	changes := string(read(t, "../CHANGELOG.md"))
	_, newest, _ := strings.Cut(changes, "\n## ")
	newest, _, _ = strings.Cut(newest, "\n## ")
	if chart.Version != chart.AppVersion || !strings.HasPrefix(newest, chart.Version+",") || !strings.Contains(newest, "\n### Before you upgrade\n") || strings.Count(newest, "\n") > 60 {
		t.Errorf("the chart is %s of %s, and the changelog begins with %d lines of %.20q", chart.Version, chart.AppVersion, strings.Count(newest, "\n"), newest)
	}
}

// The unit bounds what the server takes of the machine, and hides the processes of others from it.
func TestUnitIsBounded(t *testing.T) {
	t.Parallel()
	unit := read(t, "systemd/tidewaiter.service")
	for _, want := range []string{"MemoryMax", "TasksMax", "LimitNOFILE", "ProtectProc=invisible", "NoNewPrivileges=yes", "ProtectSystem=strict"} {
		if !regexp.MustCompile(`(?m)^` + want + `(=.+)?$`).Match(unit) {
			t.Errorf("there is no %s", want)
		}
	}
}
