// Package generated holds what openapi-gen writes. Use package openapi.
package generated
