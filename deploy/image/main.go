// Image writes container images of quorate, without a daemon: for each architecture an archive that
// `docker load` reads, and one OCI layout with all of them. The same binaries give the same bytes.
//
//	image -dist DIR -out DIR -version VERSION [-arch amd64,arm64] [-time SECONDS]
//
// DIST holds a folder linux-ARCH for each architecture, with the programs quorate and quoratectl.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user owns the data in the image, and runs the server.
const user = 65532

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	dist := flags.String("dist", "", "`folder` with linux-ARCH/quorate and linux-ARCH/quoratectl")
	out := flags.String("out", "", "`folder` for the images")
	config := flags.String("config", "", "`file` that becomes /etc/quorate/quorate.conf")
	version := flags.String("version", "", "the images' tag")
	arches := flags.String("arch", "amd64,arm64", "comma-separated architectures")
	seconds := flags.Int64("time", 0, "the images' time, `seconds` since 1970")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dist == "" || *out == "" || *config == "" || *version == "" {
		return errors.New("-dist, -out, -config and -version are needed")
	}
	tag, err := name.NewTag("quorate:" + *version)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for arch := range strings.SplitSeq(*arches, ",") {
		b := builder{arch: arch, version: *version, time: time.Unix(*seconds, 0).UTC()}
		img, err := b.image(filepath.Join(*dist, "linux-"+arch), *config)
		if err != nil {
			return err
		}
		file := filepath.Join(*out, fmt.Sprintf("quorate-%s-linux-%s.image.tar", *version, arch))
		if err := tarball.WriteToFile(file, tag, img); err != nil {
			return err
		}
		fmt.Println(file)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform:    &v1.Platform{OS: "linux", Architecture: arch},
			Annotations: map[string]string{"org.opencontainers.image.ref.name": *version},
		}})
	}
	at := filepath.Join(*out, "oci")
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	if _, err := layout.Write(at, index); err != nil {
		return err
	}
	fmt.Println(at)
	return nil
}

// builder builds the image of one architecture.
type builder struct {
	arch, version string
	time          time.Time
}

func (b builder) image(dist, config string) (v1.Image, error) {
	content, err := b.layer(dist, config)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: b.time}, CreatedBy: "make image"}}); err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, b.config(img))
}

// config is what deploy/Dockerfile says, too.
func (b builder) config(img v1.Image) *v1.ConfigFile {
	c, err := img.ConfigFile()
	if err != nil {
		panic(err) // it is in memory
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = "linux", b.arch, v1.Time{Time: b.time}
	c.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", user, user),
		Env:        []string{"PATH=/usr/bin", "QUORATE_CONFIG_FILE=/etc/quorate/quorate.conf"},
		Entrypoint: []string{"/usr/bin/quorate"},
		Cmd:        []string{"server"},
		WorkingDir: "/var/lib/quorate",
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/usr/bin/quorate", "health"}, Interval: 10 * time.Second, Timeout: 6 * time.Second,
			StartPeriod: time.Minute, Retries: 3,
		},
		ExposedPorts: map[string]struct{}{},
		Volumes:      map[string]struct{}{"/var/lib/quorate": {}},
		StopSignal:   "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title": "quorate", "org.opencontainers.image.version": b.version, "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.description": "Replicated AMQP 0-9-1 message broker",
		},
	}
	for _, port := range []string{"5671", "5672", "15671", "15672", "15691", "15692", "25672"} {
		c.Config.ExposedPorts[port+"/tcp"] = struct{}{}
	}
	return c
}

// layer is the only layer, a tar file.
func (b builder) layer(dist, config string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(path string, mode fs.FileMode, owner int, content []byte) error {
		h := &tar.Header{Name: path, Mode: int64(mode.Perm()), Uid: owner, Gid: owner, ModTime: b.time, Format: tar.FormatPAX, Typeflag: tar.TypeReg, Size: int64(len(content))}
		if mode.IsDir() {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	type entry struct {
		path  string
		mode  fs.FileMode
		owner int
		from  string
		text  string
	}
	for _, e := range []entry{
		{path: "etc/", mode: fs.ModeDir | 0o755},
		{path: "etc/group", mode: 0o644, text: fmt.Sprintf("root:x:0:\nquorate:x:%d:\n", user)},
		{path: "etc/passwd", mode: 0o644, text: fmt.Sprintf("root:x:0:0:root:/:/none\nquorate:x:%[1]d:%[1]d:quorate:/var/lib/quorate:/none\n", user)},
		{path: "etc/quorate/", mode: fs.ModeDir | 0o755},
		{path: "etc/quorate/certs/", mode: fs.ModeDir | 0o700, owner: user},
		{path: "etc/quorate/quorate.conf", mode: 0o644, from: config},
		{path: "tmp/", mode: fs.ModeDir | 0o777},
		{path: "usr/", mode: fs.ModeDir | 0o755},
		{path: "usr/bin/", mode: fs.ModeDir | 0o755},
		{path: "usr/bin/quorate", mode: 0o755, from: filepath.Join(dist, "quorate")},
		{path: "usr/bin/quoratectl", mode: 0o755, from: filepath.Join(dist, "quoratectl")},
		{path: "var/", mode: fs.ModeDir | 0o755},
		{path: "var/lib/", mode: fs.ModeDir | 0o755},
		{path: "var/lib/quorate/", mode: fs.ModeDir | 0o700, owner: user},
	} {
		content := []byte(e.text)
		if e.from != "" {
			var err error
			if content, err = os.ReadFile(e.from); err != nil {
				return nil, err
			}
		}
		if err := add(e.path, e.mode, e.owner, content); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}
