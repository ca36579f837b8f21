package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

const (
	unknown = "NOASSERTION" // SPDX's word for an unknown value
	roots   = "golang.org/x/crypto/x509roots/fallback"
)

// sbom is the bill of materials of a program and its image, as SPDX 2.3 in JSON: the modules in the
// program by Go's linker, Go itself, and the certificate authorities. SQLite is part of the module
// github.com/mattn/go-sqlite3. The C library is that of the machine that built the program, and is
// named without a version.
func (r *release) sbom(p *program) ([]byte, error) {
	binary, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(binary)
	main := part("tidewaiter", p.info.Main.Path, r.version)
	main.PackageSPDXIdentifier = "Package-0"
	main.PrimaryPackagePurpose, main.PackageLicenseDeclared = "APPLICATION", "Apache-2.0"
	main.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: hex.EncodeToString(sum[:])}}
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      "tidewaiter-" + r.version,
		DocumentNamespace: fmt.Sprintf("https://github.com/tidewaiter/tidewaiter/sbom/%s/%x", r.version, sum),
		CreationInfo: &spdx.CreationInfo{
			Created:  r.created.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Organization", Creator: "Tidewaiter"}, {CreatorType: "Tool", Creator: "tidewaiter-deploy-image"}},
		},
		Packages:      []*spdx.Package{main},
		Relationships: []*spdx.Relationship{related("DOCUMENT", "DESCRIBES", main.PackageSPDXIdentifier)},
	}
	contain := func(it *spdx.Package, how string) {
		it.PackageSPDXIdentifier = common.ElementID(fmt.Sprintf("Package-%d", len(doc.Packages)))
		doc.Packages = append(doc.Packages, it)
		doc.Relationships = append(doc.Relationships, related(main.PackageSPDXIdentifier, how, it.PackageSPDXIdentifier))
	}
	contain(part("stdlib", "std", strings.TrimPrefix(p.info.GoVersion, "go")), "STATIC_LINK")
	for _, m := range p.info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		contain(part(m.Path, m.Path, m.Version), "STATIC_LINK")
	}
	if cgo(p.info) {
		contain(&spdx.Package{
			PackageName: "libc", PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown,
			PackageCopyrightText: unknown, PackageComment: "The C library of the machine that built the program.",
		}, "STATIC_LINK")
	}
	contain(part(roots, roots, rootsVersion()), "CONTAINS")
	var out bytes.Buffer
	err = spdxjson.Write(doc, &out, spdxjson.Indent(" "))
	return out.Bytes(), err
}

// part is a module of Go.
func part(name, module, version string) *spdx.Package {
	return &spdx.Package{
		PackageName: name, PackageVersion: version,
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown, PackageCopyrightText: unknown,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL,
			Locator: "pkg:golang/" + module + "@" + strings.ReplaceAll(version, "+", "%2B"),
		}},
	}
}

func related(a common.ElementID, how string, b common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{RefA: common.MakeDocElementID("", string(a)), RefB: common.MakeDocElementID("", string(b)), Relationship: how}
}

func cgo(info *buildinfo.BuildInfo) bool {
	for _, s := range info.Settings {
		if s.Key == "CGO_ENABLED" {
			return s.Value == "1"
		}
	}
	return false
}

// rootsVersion is the version of the authorities that are linked into this program.
func rootsVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == roots {
				return m.Version
			}
		}
	}
	return "unknown"
}
