// Package pagestest has servers of lists forget what pages belong to.
package pagestest

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// renewed is the prefix of the tokens that continue a list that has expired.
const renewed = "renewed-"

// Expiring returns list with pages of one object. Each page but the first is answered 410, with a
// token that continues, as a server answers that has been asked too late.
func Expiring[L any](list func(context.Context, metav1.ListOptions) (L, error)) func(context.Context, metav1.ListOptions) (L, error) {
	return func(ctx context.Context, options metav1.ListOptions) (none L, err error) {
		token, again := strings.CutPrefix(options.Continue, renewed)
		if token != "" && !again {
			expired := apierrors.NewResourceExpired("the provided continue parameter is too old")
			expired.ErrStatus.Continue = renewed + token
			return none, expired
		}
		options.Limit, options.Continue = 1, token
		return list(ctx, options)
	}
}
