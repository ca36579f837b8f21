// Package roles has the bootstrap roles that Kubernetes does not have: OpenShift's and
// Tidewaiter's. It is data alone, so that clients can name the role that has a missing right.
package roles

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	accessGroup = "authorization.openshift.io"
	imageGroup  = "image.openshift.io"
	policyGroup = "config.openshift.io"
	ownGroup    = "tidewaiter.dev"
)

// policies are the resources of policies.
var policies = []string{"clusterimagepolicies", "imagepolicies"}

// importing are the verbs of an importer of images: all but deleting.
var importing = []string{"get", "list", "watch", "create", "update", "patch"}

// The verbs of Kubernetes' own bootstrap roles.
var (
	read       = []string{"get", "list", "watch"}
	readWrite  = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	readUpdate = []string{"get", "list", "watch", "update", "patch"}
)

// OpenShift have the names and the rules of OpenShift's bootstrap policy, as far as
// the rules are about images and pods. A registry asks about imagestreams/layers with a
// SubjectAccessReview.
func OpenShift() []rbacv1.ClusterRole {
	layers := func(verbs ...string) rbacv1.PolicyRule { return resources(imageGroup, verbs, "imagestreams/layers") }
	namespace := resources("", []string{"get"}, "namespaces")
	registryEditor := append(streamEditing(), resources(imageGroup, []string{"get"}, "imagestreams/status", "imagestreams/secrets", "imagestreamimages"), namespace)
	aggregateToAdmin := role("system:openshift:aggregate-to-admin", "Shows who can do something in a namespace. Part of the role admin.",
		resources(accessGroup, []string{"create"}, "localresourceaccessreviews"))
	aggregateToAdmin.Labels["rbac.authorization.k8s.io/aggregate-to-admin"] = "true"
	return []rbacv1.ClusterRole{
		aggregateToAdmin,
		role("basic-user", "A user that can get basic information about itself.",
			rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"user.openshift.io"}, Resources: []string{"users"}, ResourceNames: []string{"~"}}),
		role("registry-viewer", "Reads and pulls the images of a namespace.",
			resources(imageGroup, read, "imagestreams", "imagestreamtags", "imagetags"),
			resources(imageGroup, []string{"get"}, "imagestreams/status", "imagestreamimages"), layers("get"), namespace),
		role("registry-editor", "Reads, pulls, pushes and imports the images of a namespace, and writes its image streams.", registryEditor...),
		role("registry-admin", "Does what registry-editor does, and manages who may access the namespace.",
			append(slices.Clone(registryEditor),
				resources(rbacv1.GroupName, readWrite, "roles", "rolebindings"),
				resources("authorization.k8s.io", []string{"create"}, "localsubjectaccessreviews"),
				resources(accessGroup, []string{"create"}, "localresourceaccessreviews"),
				resources("", readWrite, "serviceaccounts"))...),
		role("system:image-auditor", "Reads images and changes their metadata.",
			resources(imageGroup, readUpdate, "images")),
		role("system:image-builder", "Grants the right to build, push and pull images from within a project. Used primarily with service accounts for builds.",
			layers("get", "update"), resources(imageGroup, []string{"create"}, "imagestreams")),
		role("system:image-pruner", "Finds images that nothing uses, and deletes them.",
			resources("", []string{"get", "list"}, "pods", "replicationcontrollers", "limitranges"),
			resources("apps", []string{"get", "list"}, "daemonsets", "deployments", "replicasets", "statefulsets"),
			resources("batch", []string{"get", "list"}, "jobs", "cronjobs"),
			// not served: callers with the right get 404,
			resources("apps.openshift.io", []string{"get", "list"}, "deploymentconfigs"),
			// after which oc goes on
			resources("build.openshift.io", []string{"get", "list"}, "buildconfigs", "builds"),
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

// LegacyGroup returns the group of a resource that OpenShift also has in the group "", or "". oc
// names a resource without its group if discovery does not have it, as imagestreams/layers.
func LegacyGroup(resource string) string {
	for _, role := range append(OpenShift(), Tidewaiter()...) {
		for _, rule := range role.Rules {
			if slices.Contains(rule.APIGroups, imageGroup) && slices.Contains(rule.Resources, resource) {
				return imageGroup
			}
		}
	}
	return ""
}

// streamEditing is writing image streams.
func streamEditing() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		resources(imageGroup, readWrite, "imagestreams", "imagestreamtags"),
		// a watch shows only the tags of registries
		resources(imageGroup, []string{"get", "list", "create", "update", "patch", "delete"}, "imagetags"),
		resources(imageGroup, []string{"get", "update"}, "imagestreams/layers"),
		resources(imageGroup, []string{"create"}, "imagestreamimports"),
	}
}

// Tidewaiter are the roles of Tidewaiter. deploy/kustomize has the same.
func Tidewaiter() []rbacv1.ClusterRole {
	viewer := role("tidewaiter:image-viewer", "Reads images, their packages, image streams, image tags and the policies for images, and reviews references and acts. Part of the role view.",
		resources(imageGroup, read, "images", "imagetags", "imagestreams", "imagestreamtags"),
		resources(imageGroup, []string{"get"}, "imagestreams/status", "imagestreamimages"),
		resources(policyGroup, read, policies...),
		resources(ownGroup, read, "imagepackages"),
		// an answer shows what its caller may read
		resources(ownGroup, []string{"create"}, "referencereviews", "impactreviews"))
	clusterViewer := role("tidewaiter:cluster-viewer", "Reads the followed clusters, their pods and what ran, and asks what the pods of a namespace run. Part of the role view.",
		resources(ownGroup, read, "clusters", "clusterpods", "imageruns"),
		// in a namespace, the role view can only ask what its own pods run
		resources(ownGroup, []string{"create"}, "localreferencereviews"))
	streamEditor := role("tidewaiter:stream-editor", "Writes image streams. Part of the roles edit and admin, as in OpenShift.", streamEditing()...)
	streamEditor.Labels["rbac.authorization.k8s.io/aggregate-to-edit"] = "true"
	for _, r := range []rbacv1.ClusterRole{viewer, clusterViewer} {
		r.Labels["rbac.authorization.k8s.io/aggregate-to-view"] = "true"
	}
	return []rbacv1.ClusterRole{
		role("tidewaiter:importer", "For tidewaiter import: writes images, their packages, signatures, image tags and Events, and reads which signatures policies demand.",
			resources(imageGroup, importing, "images"),
			resources(imageGroup, []string{"get", "list"}, "imagetags"),
			// an update of a tag that does not exist creates it
			resources(imageGroup, []string{"create", "update"}, "imagetags/status"),
			resources(imageGroup, []string{"create", "delete"}, "imagesignatures"),
			resources(ownGroup, []string{"create"}, "imagerecords"),
			resources(ownGroup, []string{"get", "create", "update"}, "imagepackages"),
			// without them an import searches for all that any policy may demand
			resources(policyGroup, []string{"get", "list"}, policies...),
			resources("", []string{"create", "patch"}, "events"),
			resources("events.k8s.io", []string{"create", "patch"}, "events"),
			paths([]string{"post"}, "/tidewaiter/imports")), // has the server import
		viewer, clusterViewer, streamEditor,
		role("tidewaiter:registry", "For OpenShift's registry: reports pushes and reads what is stored. A holder of this role decides where tags lead.",
			resources(imageGroup, []string{"create"}, "imagestreammappings"),
			resources(imageGroup, []string{"get", "list", "create"}, "images"),
			resources(imageGroup, []string{"get", "list"}, "imagestreams"),
			resources(imageGroup, []string{"get"}, "imagestreams/layers", "imagestreams/secrets", "imagestreamimages", "imagestreamtags"),
			resources("", []string{"list"}, "limitranges")),
		role("tidewaiter:pruner", "For tidewaiter prune: finds images that nothing needs, marks and deletes them.",
			resources(imageGroup, []string{"get", "list", "patch", "delete"}, "images"),
			resources(imageGroup, []string{"list"}, "imagetags", "imagestreams"),
			// --verdict reviews the verdict in each repository
			resources(ownGroup, []string{"create"}, "referencereviews")),
		role("tidewaiter:policy-editor", "Manages the policies that say who must sign which images.", resources(policyGroup, readWrite, policies...)),
		role("tidewaiter:tag-accepter", "Accepts that tags which must not move have moved. Bind it in the namespace default, which has the tags of registries.",
			resources(imageGroup, []string{"get", "patch", "delete", "accept"}, "imagetags")),
		// Not part of the viewer: if the role view had a path, users with that role in a namespace
		// could not grant it there.
		role("tidewaiter:summary-viewer", "Reads how much is stored.", paths([]string{"get"}, "/tidewaiter/summary")),
		role("tidewaiter:metrics", "For monitoring: reads /metrics, and whether the server imports and follows.", paths([]string{"get"}, "/metrics", "/tidewaiter/health", "/tidewaiter/health/*")),
		role("tidewaiter:queue-viewer", "Lists pushes that wait to be imported or have failed, and what receivers of webhooks heard.", paths([]string{"get"}, "/tidewaiter/spool", "/tidewaiter/receivers")),
		role("tidewaiter:queue-operator", "Retries and drops pushes that wait to be imported or have failed.", paths([]string{"get", "post"}, "/tidewaiter/spool"), paths([]string{"get"}, "/tidewaiter/receivers")),
		role("tidewaiter:verifier", "Starts judging all images again, and reads the progress.", paths([]string{"get", "post"}, "/tidewaiter/verification")),
	}
}

func role(name, description string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	return rbacv1.ClusterRole{ObjectMeta: Bootstrapped(name, description), Rules: rules}
}

// Bootstrapped is the metadata of bootstrap roles and bindings.
func Bootstrapped(name, description string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}, Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"}}
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
