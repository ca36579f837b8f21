// Command image makes a container image of static programs, without a container engine: an OCI
// image layout with an image for each program, or one index of them if there are several. `make
// image` runs it.
//
//	go run ./deploy/image -version 1.2.3 -layout bin/image bin/linux-amd64/tidewaiter bin/linux-arm64/tidewaiter
//	go run ./deploy/image -version 1.2.3 -sbom sbom.spdx.json bin/linux-amd64/tidewaiter
//	go run ./deploy/image -version 1.2.3 -layout bin/chart -chart deploy/chart
//	go run ./deploy/image -version 1.2.3 -layout bin/chart -push registry.example.com/charts/tidewaiter
//	go run ./deploy/image -version 1.2.3 -revision COMMIT -provenance provenance.json -builder URI
//
// ko was looked at instead: it needs a base image from a registry (ko-build/ko#207 asks for none)
// and compiles by itself, where an image is made here of programs that deploy/static linked with
// SQLite for both architectures.
//
// The same programs make the same bytes. Time is SOURCE_DATE_EPOCH
// (https://reproducible-builds.org/specs/source-date-epoch/), 1970 without it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	var r release
	flags.StringVar(&r.version, "version", "0.0.0-dev", "version of the programs, which names the image")
	flags.StringVar(&r.revision, "revision", "", "commit that they were built from")
	layoutDir := flags.String("layout", "", "folder to create for the OCI image layout; replaced if it exists")
	chart := flags.String("chart", "", "folder of a Helm chart to put into the layout, instead of programs")
	push := flags.String("push", "", "repository to push the layout to, under the version, instead of creating it")
	provenanceFile := flags.String("provenance", "", "file for the SLSA provenance of the release")
	builder := flags.String("builder", "https://github.com/tidewaiter/tidewaiter/blob/main/Makefile", "who built the release, for its provenance")
	sbomFile := flags.String("sbom", "", "file for the bill of materials of the one program, as SPDX in JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if r.created, err = sourceDate(os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		return err
	}
	switch {
	case *provenanceFile != "":
		b, err := r.provenance(*builder)
		if err != nil {
			return err
		}
		return os.WriteFile(*provenanceFile, b, 0o644)
	case *push != "":
		return r.push(context.Background(), *layoutDir, *push, os.Stdout)
	case *chart != "":
		digest, err := r.writeChart(*layoutDir, *chart)
		if err == nil {
			fmt.Printf("%s holds the chart tidewaiter:%s, %s\n", *layoutDir, r.version, digest)
		}
		return err
	}
	var programs []*program
	for _, path := range flags.Args() {
		p, err := openProgram(path)
		if err != nil {
			return err
		}
		programs = append(programs, p)
	}
	switch {
	case len(programs) == 0:
		return errors.New("no program is given, such as bin/linux-amd64/tidewaiter")
	case *sbomFile != "" && len(programs) != 1:
		return errors.New("-sbom takes one program")
	case *sbomFile != "":
		b, err := r.sbom(programs[0])
		if err != nil {
			return err
		}
		return os.WriteFile(*sbomFile, b, 0o644)
	case *layoutDir != "":
		digest, err := r.writeLayout(*layoutDir, programs)
		if err == nil {
			fmt.Printf("%s holds tidewaiter:%s, %s\n", *layoutDir, r.version, digest)
		}
		return err
	}
	return errors.New("neither -layout nor -sbom is given")
}

// sourceDate reads seconds since 1970; empty is 0.
func sourceDate(seconds string) (time.Time, error) {
	seconds = cmp.Or(seconds, "0")
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q is not a number of seconds", seconds)
	}
	return time.Unix(n, 0).UTC(), nil
}
