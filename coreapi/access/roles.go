package access

import (
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
)

// kubernetesRoles are the bootstrap roles of Kubernetes that make sense here. The others
// are of programs that do not run here and need resources that are not served: nodes, the
// scheduler, the controller manager and its controllers, DNS, the aggregator, volumes,
// certificate signing.
var kubernetesRoles = sets.New(
	"cluster-admin", "admin", "edit", "view",
	"system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view",
	"system:discovery", "system:basic-user", "system:public-info-viewer",
	"system:monitoring", "system:auth-delegator", "system:service-account-issuer-discovery",
)

const (
	accessGroup = "authorization.openshift.io"
	imageGroup  = "image.openshift.io"
	policyGroup = "config.openshift.io"
)

// policies are the resources that say who must have signed what.
var policies = []string{"clusterimagepolicies", "imagepolicies"}

// importing are the verbs of an importer of images: all but deleting.
var importing = []string{"get", "list", "watch", "create", "update", "patch"}

// Roles are the bootstrap roles: Kubernetes', OpenShift's for images, and those of
// Tidewaiter.
func Roles() []rbacv1.ClusterRole {
	var roles []rbacv1.ClusterRole
	for _, r := range bootstrappolicy.ClusterRoles() {
		if kubernetesRoles.Has(r.Name) {
			roles = append(roles, r)
		}
	}
	return append(append(roles, openshiftRoles()...), ownRoles()...)
}

// Bindings are the bootstrap bindings.
func Bindings() []rbacv1.ClusterRoleBinding {
	var bindings []rbacv1.ClusterRoleBinding
	for _, b := range bootstrappolicy.ClusterRoleBindings() {
		if kubernetesRoles.Has(b.RoleRef.Name) {
			bindings = append(bindings, b)
		}
	}
	return append(bindings, rbacv1.ClusterRoleBinding{
		ObjectMeta: bootstrapped("basic-users", ""),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "basic-user"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: user.AllAuthenticated}},
	})
}

// openshiftRoles have the names and the rules of OpenShift's bootstrap policy, as far as
// the rules are about images and pods. A registry asks about imagestreams/layers with a
// SubjectAccessReview.
func openshiftRoles() []rbacv1.ClusterRole {
	layers := func(verbs ...string) rbacv1.PolicyRule { return resources(imageGroup, verbs, "imagestreams/layers") }
	namespace := resources("", []string{"get"}, "namespaces")
	registryEditor := append(streamEditing(), resources(imageGroup, []string{"get"}, "imagestreams/status", "imagestreams/secrets", "imagestreamimages"), namespace)
	aggregateToAdmin := role("system:openshift:aggregate-to-admin", "Sees who can do something in a namespace. Part of the role admin.",
		resources(accessGroup, []string{"create"}, "localresourceaccessreviews"))
	aggregateToAdmin.Labels["rbac.authorization.k8s.io/aggregate-to-admin"] = "true"
	return []rbacv1.ClusterRole{
		aggregateToAdmin,
		role("basic-user", "A user that can get basic information about itself.",
			rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"user.openshift.io"}, Resources: []string{"users"}, ResourceNames: []string{"~"}}),
		role("registry-viewer", "Reads and pulls the images of a namespace.",
			resources(imageGroup, bootstrappolicy.Read, "imagestreams", "imagestreamtags", "imagetags"),
			resources(imageGroup, []string{"get"}, "imagestreams/status", "imagestreamimages"), layers("get"), namespace),
		role("registry-editor", "Reads, pulls, pushes and imports the images of a namespace, and writes its image streams.", registryEditor...),
		role("registry-admin", "What registry-editor does, and says who else may.",
			append(slices.Clone(registryEditor),
				resources(rbacv1.GroupName, bootstrappolicy.ReadWrite, "roles", "rolebindings"),
				resources("authorization.k8s.io", []string{"create"}, "localsubjectaccessreviews"),
				resources(accessGroup, []string{"create"}, "localresourceaccessreviews"),
				resources("", bootstrappolicy.ReadWrite, "serviceaccounts"))...),
		role("system:image-auditor", "Reads images and changes what they say of themselves.",
			resources(imageGroup, bootstrappolicy.ReadUpdate, "images")),
		role("system:image-builder", "Grants the right to build, push and pull images from within a project. Used primarily with service accounts for builds.",
			layers("get", "update"), resources(imageGroup, []string{"create"}, "imagestreams")),
		role("system:image-pruner", "Finds images that nothing uses, and deletes them.",
			resources("", []string{"get", "list"}, "pods", "replicationcontrollers", "limitranges"),
			resources("apps", []string{"get", "list"}, "daemonsets", "deployments", "replicasets", "statefulsets"),
			resources("batch", []string{"get", "list"}, "jobs", "cronjobs"),
			resources("apps.openshift.io", []string{"get", "list"}, "deploymentconfigs"),       // not served: who may ask is answered 404,
			resources("build.openshift.io", []string{"get", "list"}, "buildconfigs", "builds"), // by which oc goes on
			resources(imageGroup, []string{"delete"}, "images"),
			resources(imageGroup, []string{"get", "list"}, "images", "imagestreams"),
			resources(imageGroup, []string{"update"}, "imagestreams/status")),
		role("system:image-puller", "Grants the right to pull images from within a project.", layers("get")),
		role("system:image-pusher", "Grants the right to push and pull images from within a project.", layers("get", "update")),
		role("system:image-signer", "Adds and removes signatures.",
			resources(imageGroup, []string{"get"}, "images", "imagestreams/layers"),
			resources(imageGroup, []string{"create", "delete"}, "imagesignatures")),
	}
}

// streamEditing is writing image streams.
func streamEditing() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		resources(imageGroup, bootstrappolicy.ReadWrite, "imagestreams", "imagestreamtags"),
		resources(imageGroup, []string{"get", "list", "create", "update", "patch", "delete"}, "imagetags"), // a watch shows only those of registries
		resources(imageGroup, []string{"get", "update"}, "imagestreams/layers"),
		resources(imageGroup, []string{"create"}, "imagestreamimports"),
	}
}

// ownRoles are those of Tidewaiter. deploy/kustomize has the same.
func ownRoles() []rbacv1.ClusterRole {
	viewer := role("tidewaiter:image-viewer", "Reads images, image streams, where tags lead and the policies that images are judged by, and asks about references. Part of the role view.",
		resources(imageGroup, bootstrappolicy.Read, "images", "imagetags", "imagestreams", "imagestreamtags"),
		resources(imageGroup, []string{"get"}, "imagestreams/status", "imagestreamimages"),
		resources(policyGroup, bootstrappolicy.Read, policies...),
		resources(clusters.GroupVersion.Group, []string{"create"}, "referencereviews")) // an answer shows what its caller may read
	clusterViewer := role("tidewaiter:cluster-viewer", "Reads the pods of the clusters that are followed, and what is known of these. Part of the role view.",
		resources(clusters.GroupVersion.Group, bootstrappolicy.Read, "clusters", "clusterpods"))
	streamEditor := role("tidewaiter:stream-editor", "Writes image streams. Part of the roles edit and admin, as in OpenShift.", streamEditing()...)
	streamEditor.Labels["rbac.authorization.k8s.io/aggregate-to-edit"] = "true"
	for _, r := range []rbacv1.ClusterRole{viewer, clusterViewer} {
		r.Labels["rbac.authorization.k8s.io/aggregate-to-view"] = "true"
	}
	return []rbacv1.ClusterRole{
		role("tidewaiter:importer", "What tidewaiter import needs: writes images, their signatures and where tags lead, says so in Events, and reads which signatures policies demand.",
			resources(imageGroup, importing, "images"),
			resources(imageGroup, []string{"get", "list"}, "imagetags"),
			resources(imageGroup, []string{"create", "update"}, "imagetags/status"), // an update of a tag that does not exist creates it
			resources(imageGroup, []string{"create", "delete"}, "imagesignatures"),
			resources(policyGroup, []string{"get", "list"}, policies...), // without them an import searches for all that any policy may demand
			resources("", []string{"create", "patch"}, "events"),
			resources("events.k8s.io", []string{"create", "patch"}, "events")),
		viewer, clusterViewer, streamEditor,
		role("tidewaiter:registry", "What OpenShift's registry needs: tells of what is pushed to it, and asks what it has. Whoever has it says where tags lead.",
			resources(imageGroup, []string{"create"}, "imagestreammappings"),
			resources(imageGroup, []string{"get", "list", "create"}, "images"),
			resources(imageGroup, []string{"get", "list"}, "imagestreams"),
			resources(imageGroup, []string{"get"}, "imagestreams/layers", "imagestreams/secrets", "imagestreamimages", "imagestreamtags"),
			resources("", []string{"list"}, "limitranges")),
		role("tidewaiter:pruner", "What tidewaiter prune needs: finds images that nothing needs, marks and deletes them.",
			resources(imageGroup, []string{"get", "list", "patch", "delete"}, "images"),
			resources(imageGroup, []string{"list"}, "imagetags", "imagestreams"),
			resources(clusters.GroupVersion.Group, []string{"create"}, "referencereviews")), // --verdict asks for the verdict in each repository
		role("tidewaiter:policy-editor", "Says who must have signed what.", resources(policyGroup, bootstrappolicy.ReadWrite, policies...)),
		role("tidewaiter:metrics", "Reads /metrics.", paths([]string{"get"}, "/metrics")),
		role("tidewaiter:queue-viewer", "Sees pushes that wait to be imported or have failed.", paths([]string{"get"}, "/tidewaiter/spool")),
		role("tidewaiter:queue-operator", "Retries and drops pushes that wait to be imported or have failed.", paths([]string{"get", "post"}, "/tidewaiter/spool")),
		role("tidewaiter:verifier", "Has all images judged again, and sees how far that is.", paths([]string{"get", "post"}, "/tidewaiter/verification")),
	}
}

func role(name, description string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	return rbacv1.ClusterRole{ObjectMeta: bootstrapped(name, description), Rules: rules}
}

// bootstrapped is the metadata of bootstrap roles and bindings.
func bootstrapped(name, description string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Labels: maps.Clone(bootstrappolicy.Label), Annotations: maps.Clone(bootstrappolicy.Annotation)}
	if description != "" {
		m.Annotations["openshift.io/description"] = description
	}
	return m
}

func resources(group string, verbs []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}, Resources: names}
}

func paths(verbs []string, urls ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, NonResourceURLs: urls}
}
