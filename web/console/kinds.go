package console

import (
	"encoding/json"
	"time"
)

// The types below have the fields of the API's kinds that pages show.

type listMeta struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
	Remaining       *int64 `json:"remainingItemCount"`
}

type objectMeta struct {
	Name            text              `json:"name"`
	Namespace       text              `json:"namespace"`
	ResourceVersion string            `json:"resourceVersion"`
	Created         time.Time         `json:"creationTimestamp"`
	Annotations     map[string]string `json:"annotations"` // raw: must not be shown
}

// table is a Table of the API, as kubectl prints it.
type table struct {
	Metadata listMeta `json:"metadata"`
	Columns  []struct {
		Name string `json:"name"`
	} `json:"columnDefinitions"`
	Rows []tableRow `json:"rows"`
	// Warnings came with the answer.
	Warnings []text `json:"-"`
}

type tableRow struct {
	Cells  []any `json:"cells"`
	Object struct {
		Metadata objectMeta `json:"metadata"`
	} `json:"object"`
}

// cell returns the cell of a column by name. If several have the name, it takes the first, which
// has priority 1 and the most detail.
func (t *table) cell(row *tableRow, name string) text {
	for i := range t.Columns {
		if t.Columns[i].Name == name && i < len(row.Cells) {
			return textOf(row.Cells[i])
		}
	}
	return ""
}

type condition struct {
	Type    text      `json:"type"`
	Status  text      `json:"status"`
	Reason  text      `json:"reason"`
	Message text      `json:"message"`
	Since   time.Time `json:"lastTransitionTime"`
}

// find returns the condition of a type; the zero condition if there is none.
func find(all []condition, kind text) condition {
	for _, c := range all {
		if c.Type == kind {
			return c
		}
	}
	return condition{}
}

// review is a ReferenceReview.
type review struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Spec       reviewSpec   `json:"spec"`
	Status     reviewStatus `json:"status,omitzero"`
}

type reviewSpec struct {
	References []question `json:"references"`
	FormerTags bool       `json:"formerTags,omitempty"`
	DriftSince *time.Time `json:"driftSince,omitempty"`
}

type question struct {
	Reference text `json:"reference"`
	Namespace text `json:"namespace,omitempty"`
	Platform  text `json:"platform,omitempty"`
	Runs      text `json:"runs,omitempty"`
}

type reviewStatus struct {
	AsOf       time.Time         `json:"asOf"`
	References []referenceAnswer `json:"references"`
}

type referenceAnswer struct {
	Question   question      `json:"question"`
	State      text          `json:"state"`
	Message    text          `json:"message"`
	Suggestion text          `json:"suggestion"`
	Meaning    meaning       `json:"meaning"`
	Checked    checked       `json:"checked"`
	Verdict    *verdict      `json:"verdict"`
	Verdicts   []verdict     `json:"verdicts"`
	Running    *running      `json:"running"`
	NeededBy   []text        `json:"neededBy"`
	Previous   []previous    `json:"previous"`
	Drift      []drift       `json:"drift"`
	Base       *base         `json:"base"`
	Unknowns   []unknownPart `json:"unknowns"`
}

type meaning struct {
	Reference    text            `json:"reference"`
	Repository   text            `json:"repository"`
	Tag          text            `json:"tag"`
	Digest       text            `json:"digest"`
	Platform     text            `json:"platform"`
	Platforms    []platformImage `json:"platforms"`
	Indexes      []text          `json:"indexes"`
	Repositories []text          `json:"repositories"`
	Tags         []text          `json:"tags"`
	FormerTags   []formerTag     `json:"formerTags"`
	Assumed      []text          `json:"assumed"`
	Others       []text          `json:"others"`
	KnownTags    []text          `json:"knownTags"`
	Size         int64           `json:"size"`
	ArtifactType text            `json:"artifactType"`
}

type platformImage struct {
	Platform text `json:"platform"`
	Digest   text `json:"digest"`
}

type formerTag struct {
	Reference text      `json:"reference"`
	Since     time.Time `json:"since"`
	Until     time.Time `json:"until"`
	Now       text      `json:"now"`
}

type checked struct {
	Registry     text         `json:"registry"`
	LastChecked  time.Time    `json:"lastChecked"`
	Overwritten  *overwritten `json:"overwritten"`
	Since        time.Time    `json:"since"`
	By           text         `json:"by"`
	Failing      text         `json:"failing"`
	FailingSince time.Time    `json:"failingSince"`
}

type verdict struct {
	Reference text   `json:"reference"`
	Verified  text   `json:"verified"`
	Policies  []text `json:"policies"`
	Missing   []text `json:"missing"`
	Spared    []text `json:"spared"`
	Reason    text   `json:"reason"`
	Message   text   `json:"message"`
	Signers   []text `json:"signers"`
	Index     text   `json:"index"`
	Until     text   `json:"until"`
	Attested  text   `json:"attested"`
}

// Shown is the verdict with the day on which its exception ends, as in tables of the API.
func (v *verdict) Shown() text {
	if v.Until == "" {
		return v.Verified
	}
	return v.Verified + ":" + v.Until[:min(len(v.Until), len(time.DateOnly))]
}

type base struct {
	Reference text      `json:"reference"`
	Digest    text      `json:"digest"`
	Now       text      `json:"now"`
	Outdated  text      `json:"outdated"`
	Until     time.Time `json:"until"`
	Message   text      `json:"message"`
}

// document is an SBOM or a VEX document of an ImagePackages, whose packages a list leaves out.
type document struct {
	Type       text `json:"type"`
	Format     text `json:"format"`
	Signature  text `json:"signature"`
	Signed     bool `json:"signed"`
	Index      text `json:"index"`
	Count      int  `json:"count"`
	Problem    text `json:"problem"`
	Statements []struct {
		Vulnerability text `json:"vulnerability"`
		Status        text `json:"status"`
		Justification text `json:"justification"`
	} `json:"statements"`
	Packages []packageOf `json:"packages"` // only of an image that is read by its name
}

// packageOf is a package of an image.
type packageOf struct {
	Name    text `json:"name"`
	Version text `json:"version"`
	PURL    text `json:"purl"`
	License text `json:"license"`
}

type imagePackages struct {
	Sources []document `json:"sources"`
}

type running struct {
	Pods           int            `json:"pods"`
	Complete       bool           `json:"complete"`
	Clusters       []runningIn    `json:"clusters"`
	Names          []text         `json:"names"`
	Outdated       int            `json:"outdated"`
	OutdatedImages []runningImage `json:"outdatedImages"`

	OutdatedUnknown       int  `json:"outdatedUnknown"`
	OutdatedUnknownReason text `json:"outdatedUnknownReason"`
}

type runningIn struct {
	Cluster   text      `json:"cluster"`
	Namespace text      `json:"namespace"`
	Pods      int       `json:"pods"`
	Since     time.Time `json:"since"`
}

type runningImage struct {
	Digest text `json:"digest"`
	Pods   int  `json:"pods"`
}

type previous struct {
	Digest text      `json:"digest"`
	Since  time.Time `json:"since"`
	By     text      `json:"by"`
}

type unknownPart struct {
	Part   text `json:"part"`
	Reason text `json:"reason"`
}

type image struct {
	Metadata         objectMeta    `json:"metadata"`
	Reference        text          `json:"dockerImageReference"`
	MediaType        text          `json:"dockerImageManifestMediaType"`
	Config           string        `json:"dockerImageConfig"`
	Content          imageMetadata `json:"dockerImageMetadata"`
	Layers           []imageLayer  `json:"dockerImageLayers"`
	Signatures       []signature   `json:"signatures"`
	ManifestsOfIndex []struct {
		Digest       text `json:"digest"`
		Architecture text `json:"architecture"`
	} `json:"dockerImageManifests"`
}

type imageMetadata struct {
	Created      time.Time    `json:"Created"`
	Architecture text         `json:"Architecture"`
	Size         int64        `json:"Size"`
	Config       *imageConfig `json:"Config"`
}

type imageConfig struct {
	User         text              `json:"User"`
	ExposedPorts map[text]struct{} `json:"ExposedPorts"`
	Volumes      map[text]struct{} `json:"Volumes"`
	Env          []text            `json:"Env"`
	Entrypoint   []text            `json:"Entrypoint"`
	Cmd          []text            `json:"Cmd"`
	WorkingDir   text              `json:"WorkingDir"`
	Labels       map[text]text     `json:"Labels"`
}

// config says how the image runs. The API leaves it out of dockerImageMetadata if it is so long
// that it has room only once, in dockerImageConfig.
func (i *image) config() *imageConfig {
	if i.Content.Config != nil || i.Config == "" || i.Metadata.Annotations["tidewaiter.dev/artifact-type"] != "" {
		return i.Content.Config
	}
	var whole struct {
		Config *imageConfig `json:"config"`
	}
	if json.Unmarshal([]byte(i.Config), &whole) != nil {
		return nil
	}
	return whole.Config
}

// lacksConfig reports whether the image has a config that the API does not hold.
func (i *image) lacksConfig() bool {
	var left struct {
		Config json.RawMessage `json:"config"`
	}
	_ = json.Unmarshal([]byte(i.Metadata.Annotations["tidewaiter.dev/left-out"]), &left)
	return left.Config != nil
}

type imageLayer struct {
	Name text  `json:"name"`
	Size int64 `json:"size"`
}

// history is the config's history, which lists how the layers were made.
type history struct {
	History []struct {
		CreatedBy text `json:"created_by"`
		Empty     bool `json:"empty_layer"`
	} `json:"history"`
}

type signature struct {
	Type       text          `json:"type"`
	Conditions []condition   `json:"conditions"`
	Claims     map[text]text `json:"signedClaims"`
	IssuedTo   *struct {
		CommonName  text `json:"commonName"`
		PublicKeyID text `json:"publicKeyID"`
	} `json:"issuedTo"`
	IssuedBy *struct {
		CommonName text `json:"commonName"`
	} `json:"issuedBy"`
}

// imageTag is an ImageTag: where a tag leads and led.
type imageTag struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		Name text `json:"name"`
		From *struct {
			Kind text `json:"kind"`
			Name text `json:"name"`
		} `json:"from"`
	} `json:"spec"`
	Status struct {
		Items []struct {
			Created time.Time `json:"created"`
			Image   text      `json:"image"`
		} `json:"items"`
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type list[T any] struct {
	Metadata listMeta `json:"metadata"`
	Items    []T      `json:"items"`
}

type clusterPod struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		Cluster    text      `json:"cluster"`
		Namespace  text      `json:"namespace"`
		Name       text      `json:"name"`
		Workload   text      `json:"workload"`
		Since      time.Time `json:"since"`
		Containers []struct {
			Name        text `json:"name"`
			Image       text `json:"image"`
			Digest      text `json:"digest"`
			Verified    text `json:"verified"`
			Waiting     text `json:"waiting"`
			NotImported text `json:"notImported"`
			Outdated    text `json:"outdated"`

			OutdatedUnknown text `json:"outdatedUnknown"`
		} `json:"containers"`
	} `json:"spec"`
}

type cluster struct {
	Metadata objectMeta `json:"metadata"`
	Status   struct {
		LastSeen   time.Time   `json:"lastSeen"`
		Pods       int         `json:"pods"`
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type imagePolicy struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		Scopes       []text `json:"scopes"`
		Alternatives text   `json:"alternatives"`
		Policy       struct {
			RootOfTrust struct {
				PolicyType text `json:"policyType"`
			} `json:"rootOfTrust"`
			SignedIdentity struct {
				MatchPolicy text `json:"matchPolicy"`
			} `json:"signedIdentity"`
		} `json:"policy"`
	} `json:"spec"`
	Status struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type event struct {
	Metadata objectMeta `json:"metadata"`
	Involved struct {
		Kind      text `json:"kind"`
		Name      text `json:"name"`
		Namespace text `json:"namespace"`
	} `json:"involvedObject"`
	Reason    text      `json:"reason"`
	Message   text      `json:"message"`
	Type      text      `json:"type"`
	Count     int       `json:"count"`
	First     time.Time `json:"firstTimestamp"`
	Last      time.Time `json:"lastTimestamp"`
	EventTime time.Time `json:"eventTime"`
}

// queuedJob is a push, or a notification, in a queue.
type queuedJob struct {
	ID       int64     `json:"id"`
	Key      text      `json:"key"`
	Receiver text      `json:"receiver"`
	State    text      `json:"state"`
	Enqueued time.Time `json:"enqueued"`
	Attempts int       `json:"attempts"`
	Error    text      `json:"error"`
}

type spool struct {
	Jobs    []queuedJob `json:"jobs"`
	Changed int64       `json:"changed"`
}

// receivers are the receivers of webhooks, with their last deliveries since the server started.
type receivers struct {
	Receivers []struct {
		Name        text      `json:"name"`
		Type        text      `json:"type"`
		LastHeard   time.Time `json:"lastHeard"`
		LastQueued  time.Time `json:"lastQueued"`
		LastRefused time.Time `json:"lastRefused"`
		Refused     text      `json:"refused"`
	} `json:"receivers"`
}

// summary has the numbers of stored objects.
type summary struct {
	ImagesAsOf         time.Time        `json:"imagesAsOf"`
	Images             int64            `json:"images"`
	Verified           map[string]int64 `json:"verified"`
	LayerBytes         int64            `json:"layerBytes"`
	DistinctLayerBytes int64            `json:"distinctLayerBytes"`
	Estimated          bool             `json:"estimated"`
	UsedAsOf           time.Time        `json:"usedAsOf"`
	Used               map[string]int64 `json:"used"`
	Outdated           *int64           `json:"outdated"`
	OutdatedUnknown    int64            `json:"outdatedUnknown"`
	Gone               *int64           `json:"gone"`
	GoneSince          time.Time        `json:"goneSince"`
	GoneUnknown        []text           `json:"goneUnknown"`
	First              []text           `json:"first"`
	PushesAsOf         time.Time        `json:"pushesAsOf"`
	Pushes             []struct {
		Date text  `json:"date"`
		Tags int64 `json:"tags"`
	} `json:"pushes"`
	Certificates    []certificate `json:"certificates"`
	Overwritten     *int          `json:"overwritten"`
	OverwrittenTags []overwritten `json:"overwrittenTags"`
	LostRegistries  []lost        `json:"lostRegistries"`
}

// lost is a registry that may have lost its storage.
type lost struct {
	Registry text      `json:"registry"`
	Since    time.Time `json:"since"`
	Message  text      `json:"message"`
}

// overwritten is a tag that has moved although it must not.
type overwritten struct {
	Reference text      `json:"reference"`
	From      text      `json:"from"`
	To        text      `json:"to"`
	Since     time.Time `json:"since"`
	By        text      `json:"by"`
	Rules     []text    `json:"rules"`
	Message   text      `json:"message"`
}

// certificate is a certificate that the server's connections need.
type certificate struct {
	Name    text      `json:"name"`
	Subject text      `json:"subject"`
	Ends    time.Time `json:"ends"`
	Unknown text      `json:"unknown"`
}

type user struct {
	Metadata objectMeta `json:"metadata"`
}
