# What people type. The gate itself is .ci/run.
.PHONY: sbom test test-real race gate generate demo dev vuln bench bench-compare build

build:
	go build -trimpath -o bin/tidemark ./cmd/tidemark

# What is in the binary, as CycloneDX, with versions, hashes and licences as far
# as their files tell.
sbom: build
	go tool -modfile=deploy/check/go.mod cyclonedx-gomod bin -json -licenses -output bin/tidemark.cdx.json bin/tidemark

test:
	go test ./...

# Brings real services up by itself, and ends them.
test-real:
	.ci/real

race:
	go test -race -shuffle=on ./...

gate:
	.ci/run

generate:
	go tool -modfile=tools/go.mod buf generate

demo:
	go run ./cmd/tidemark demo

dev:
	go run ./cmd/tidemark dev --data data

bench:
	go test -run '^$$' -bench . -benchmem ./...

# What the gate does with the last release, with another commit: BASE=HEAD~3.
bench-compare:
	go run ./internal/regression -rounds 10 $(if $(BASE),-base $(BASE))

# Needs the public vulnerability database, which a closed network lacks.
vuln:
	go tool govulncheck ./...
