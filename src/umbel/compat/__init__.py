"""Celery's and Kombu's module paths, for programs that were written for them.

`umbel.compat.celery` and `umbel.compat.kombu` are packages like any other; `umbel.compat.alias`
makes ``import celery`` and ``import kombu`` mean them. What they don't have, `umbel.compat.missing`
answers for.
"""

from umbel.compat.missing import watch

watch()
