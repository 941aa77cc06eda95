import json
import sys
from datetime import UTC, datetime, timedelta

from celery import chain, group, signature, states
from celery.exceptions import TimeoutError
from celery.result import AsyncResult
from proj import celery_app
from proj.mail.tasks import apologize, letter
from proj.tasks import add, flaky, hopeless, pay, price, progress, refuse, reserve, slow

PATIENCE = 30


def failure(result):
    try:
        return result.get(timeout=PATIENCE)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"


def main():
    path = sys.argv[1]
    said = {}
    total = chain(price.s(3), add.s(4), price.s(each=10)).apply_async()
    said["chain"] = [total.get(timeout=PATIENCE), total.parent.get(), total.parent.parent.get()]
    said["pipe"] = (price.s(1) | add.s(1)).delay().get(timeout=PATIENCE)
    linked = add.apply_async((1, 1), link=letter.si("a letter"))
    said["link"] = [linked.get(timeout=PATIENCE), linked.children[0].get(timeout=PATIENCE)]
    said["letter"] = letter.delay("one").get(timeout=PATIENCE)
    said["retry"] = reserve.delay("book").get(timeout=PATIENCE)
    said["hopeless"] = failure(hopeless.delay())
    paid = pay.apply_async(args=(0,), link_error=apologize.s())
    said["failed"] = [failure(paid), paid.state, paid.successful(), "pay(" in paid.traceback]
    later = add.apply_async((1, 2), eta=datetime.now(UTC) + timedelta(seconds=0.5))
    soon = add.apply_async((2, 2), countdown=0.5, expires=60)
    said["later"] = [later.get(timeout=PATIENCE), soon.get(timeout=PATIENCE)]
    said["flaky"] = flaky.delay(path).get(timeout=PATIENCE)
    packing = progress.delay()
    while packing.state != "PACKING":
        pass
    said["progress"] = packing.info
    said["slow"] = slow.delay().get(timeout=PATIENCE)
    said["refuse"] = failure(refuse.delay())
    by_name = celery_app.send_task("shop.pay", kwargs={"amount": 5})
    again = AsyncResult(by_name.id, app=celery_app)
    said["by name"] = [again.get(timeout=PATIENCE), again.status == states.SUCCESS, again.name]
    said["signature"] = signature("proj.tasks.add", args=(1, 5)).delay().get(timeout=PATIENCE)
    try:
        AsyncResult("nobody", app=celery_app).get(timeout=0.01)
    except TimeoutError:
        said["timeout"] = True
    try:
        group(add.s(1, 1), add.s(2, 2))
    except Exception as exc:
        said["group"] = str(exc)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
