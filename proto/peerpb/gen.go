// Package peerpb is what nodes say to each other beside raft.
package peerpb

//go:generate go run ../internal/generate protoc-gen-go=paths=source_relative protoc-gen-go-vtproto=paths=source_relative,features=marshal+unmarshal+size+pool,pool=github.com/quorate/quorate/proto/peerpb.Outcomes,pool=github.com/quorate/quorate/proto/peerpb.Outcome,pool=github.com/quorate/quorate/proto/peerpb.Deliveries,pool=github.com/quorate/quorate/proto/peerpb.Delivery,pool=github.com/quorate/quorate/proto/peerpb.Submit protoc-gen-go-grpc=paths=source_relative
