// Generate compiles the .proto files of the folder it is run in and hands
// them to code generators. It needs nothing but the Go modules pinned in
// go.mod: protocompile parses, the generators run as `go tool`.
//
//	generate protoc-gen-go=paths=source_relative protoc-gen-go-grpc=…
//
// A generator can be kept to one file: protoc-gen-go-vtproto:log.proto=….
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(plugins []string) error {
	files, err := filepath.Glob("*.proto")
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no .proto files here (%v)", err)
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(context.Background(), files...)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: files}
	seen := map[string]bool{}
	for _, f := range compiled {
		addFile(request, f, seen)
	}
	for _, p := range plugins {
		name, options, _ := strings.Cut(p, "=")
		name, file, single := strings.Cut(name, ":")
		r := proto.CloneOf(request)
		r.Parameter = proto.String(options)
		if single {
			r.FileToGenerate = []string{file}
		}
		if name == "protoc-gen-go-vtproto" {
			showAsProto3(r)
		}
		if err := generate(name, r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// showAsProto3 hides from a generator that knows no editions that the project's
// files are of one. They have proto3's features but for the check of UTF-8, which
// vtproto never makes.
func showAsProto3(request *pluginpb.CodeGeneratorRequest) {
	for _, f := range request.ProtoFile {
		if f.GetSyntax() == "editions" {
			f.Syntax = proto.String("proto3")
			f.Edition = nil
			f.Options.Features = nil
		}
	}
}

// addFile appends f behind everything it imports, each file once.
func addFile(request *pluginpb.CodeGeneratorRequest, f protoreflect.FileDescriptor, seen map[string]bool) {
	if seen[f.Path()] {
		return
	}
	seen[f.Path()] = true
	imports := f.Imports()
	for i := range imports.Len() {
		addFile(request, imports.Get(i).FileDescriptor, seen)
	}
	request.ProtoFile = append(request.ProtoFile, protodesc.ToFileDescriptorProto(f))
}

// generate runs one plugin on the request and writes the files it answers.
func generate(plugin string, request *pluginpb.CodeGeneratorRequest) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "tool", plugin)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("%s", response.GetError())
	}
	for _, f := range response.File {
		if err := os.WriteFile(filepath.Base(f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
