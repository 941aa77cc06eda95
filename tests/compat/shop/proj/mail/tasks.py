import celery


@celery.shared_task(bind=True)
def letter(self, text):
    return f"{text} by {self.request.hostname.partition('@')[0]}"


@celery.shared_task
def apologize(request, exc, traceback):
    return f"sorry: {exc}"
